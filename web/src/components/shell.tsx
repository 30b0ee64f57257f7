import { Link, Outlet, useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { useMe } from "../api/queries";
import { type StreamState, useEventStream } from "../lib/events";
import { useKeys } from "../lib/keys";
import { type ThemeChoice, useTheme } from "../lib/theme";
import { LoginPage } from "../pages/login";
import { ErrorNotice } from "./error-notice";
import { KeyboardHelp } from "./keyboard-help";

/** Frame of every page: navigation, the one event stream, theme; asks for a token when there is none. */
export function Shell() {
  const me = useMe();
  if (me.isPending) return <p className="p-8 text-soft">Loading…</p>;
  if (me.data === undefined) {
    return (
      <main className="p-8">
        <ErrorNotice error={me.error} />
      </main>
    );
  }
  if (me.data === null) return <LoginPage />;
  return <SignedIn name={me.data.name} />;
}

function SignedIn({ name }: { readonly name: string }) {
  const stream = useEventStream();
  const navigate = useNavigate();
  const [helpOpen, setHelpOpen] = useState(false);
  const keys = useMemo(
    () => ({
      "1": () => void navigate({ to: "/incidents", search: {} }),
      "2": () => void navigate({ to: "/jobs" }),
      "3": () => void navigate({ to: "/nodes" }),
      "?": () => setHelpOpen(true),
      escape: () => setHelpOpen(false),
    }),
    [navigate],
  );
  useKeys(keys);
  return (
    <div className="min-h-screen">
      <a href="#content" className="sr-only focus:not-sr-only focus:absolute focus:p-2">
        Skip to content
      </a>
      <header className="border-line border-b bg-surface">
        <div className="mx-auto flex max-w-[1440px] flex-wrap items-center gap-x-6 gap-y-2 px-4 py-2">
          <Link to="/incidents" search={{}} className="flex items-center gap-2 font-bold text-base">
            <img src="/favicon.svg" alt="" className="size-6" />
            Paceline
          </Link>
          <nav aria-label="Main" className="flex flex-wrap gap-x-4 gap-y-1">
            <NavLink to="/incidents">Incidents</NavLink>
            <NavLink to="/jobs">Jobs</NavLink>
            <NavLink to="/nodes">Nodes</NavLink>
            <NavLink to="/deliveries">Deliveries</NavLink>
            <NavLink to="/audit">Audit</NavLink>
          </nav>
          <div className="ml-auto flex items-center gap-4 text-soft text-xs">
            <StreamLight state={stream} />
            <span className="hidden sm:inline">{name}</span>
            <ThemeSelect />
          </div>
        </div>
      </header>
      <main id="content" className="mx-auto max-w-[1440px] px-4 py-4">
        <Outlet />
      </main>
      {helpOpen && <KeyboardHelp onClose={() => setHelpOpen(false)} />}
    </div>
  );
}

function NavLink({ to, children }: { readonly to: string; readonly children: string }) {
  return (
    <Link
      to={to}
      className="border-transparent border-b-2 py-0.5 text-soft hover:text-ink data-[status=active]:border-accent data-[status=active]:text-ink"
    >
      {children}
    </Link>
  );
}

const STREAM_TEXT: Readonly<Record<StreamState, string>> = {
  live: "live",
  connecting: "connecting…",
  lost: "connection lost, figures may be old",
};

function StreamLight({ state }: { readonly state: StreamState }) {
  const colour = state === "live" ? "bg-good" : "bg-slow";
  return (
    <span role="status" className="flex items-center gap-1.5">
      <span aria-hidden="true" className={`size-2 rounded-full ${colour}`} />
      {STREAM_TEXT[state]}
    </span>
  );
}

function ThemeSelect() {
  const { choice, choose } = useTheme();
  return (
    <label className="flex items-center gap-1">
      <span className="sr-only">Theme</span>
      <select
        value={choice}
        onChange={(event) => choose(event.target.value as ThemeChoice)}
        className="rounded border border-line-strong bg-surface px-1 py-0.5 text-ink"
      >
        <option value="system">system</option>
        <option value="light">light</option>
        <option value="dark">dark</option>
      </select>
    </label>
  );
}
