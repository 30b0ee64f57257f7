import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Incident } from "../../api/client";
import { useIncident, useIncidentAction } from "../../api/queries";
import { Button, Download } from "../../components/button";
import { ErrorNotice } from "../../components/error-notice";
import { Panel } from "../../components/panel";
import { StatusText, VerdictBadge } from "../../components/verdict";
import { useKeys } from "../../lib/keys";
import { formatAge, useNow } from "../../lib/time";
import { JobMap } from "../../rankmap/job-map";
import { HappenedRepair, NextRepair } from "../../repair/of-incident";
import { incidentRoute } from "../../router";
import { Cost } from "./cost";
import { Involved, WhatHappened } from "./happened";
import { Memory } from "./memory";
import { WhatNext } from "./next";
import { ShippedLogs } from "./shipped";
import { copySummary, firstRootRank } from "./summary";
import { Timeline } from "./timeline";
import { Evidence } from "./why";

export function IncidentPage() {
  const { incidentId } = incidentRoute.useParams();
  const incident = useIncident(incidentId);
  if (incident.error) return <ErrorNotice error={incident.error} />;
  if (!incident.data) return <p className="text-soft">Loading…</p>;
  return <IncidentView incident={incident.data} />;
}

/** The four questions, in reading order: what happened, why, what next, did it happen. */
function IncidentView({ incident }: { readonly incident: Incident }) {
  const { rank } = incidentRoute.useSearch();
  const navigate = useNavigate({ from: "/incidents/$incidentId" });
  const selected = rank ?? firstRootRank(incident.roots);
  return (
    <>
      <Headline incident={incident} />
      <div className="grid items-start gap-4 lg:grid-cols-[3fr_2fr]">
        <div className="grid min-w-0 gap-4">
          <Panel title="What happened">
            <div className="grid gap-x-6 gap-y-4 md:grid-cols-2">
              <WhatHappened incident={incident} />
              <JobMap
                jobId={incident.job}
                selected={selected}
                onSelect={(next) => void navigate({ search: { rank: next }, replace: true })}
              />
            </div>
            <Involved communicators={incident.what_happened.communicators} />
          </Panel>
          <Panel
            title="Why (evidence)"
            aside={`confidence ${Math.round(incident.why.confidence * 100)} %, revision ${incident.revision}`}
          >
            <Evidence why={incident.why} />
            <ShippedLogs shipped={incident.why.shipped} />
            <Memory memory={incident.memory} />
          </Panel>
        </div>
        <div className="grid min-w-0 gap-4">
          <Panel title="What next">
            <WhatNext next={incident.what_next} />
            <NextRepair incident={incident} />
            <Cost cost={incident.cost} />
          </Panel>
          <Panel title="Did it happen">
            <HappenedRepair incident={incident} />
            <Timeline incident={incident} />
          </Panel>
        </div>
      </div>
    </>
  );
}

function Headline({ incident }: { readonly incident: Incident }) {
  const now = useNow();
  const acknowledge = useIncidentAction(incident.id, "acknowledgements");
  const resolve = useIncidentAction(incident.id, "resolutions");
  const isOpen = incident.status === "open";
  const isResolved = incident.status === "resolved";
  const bindings = useMemo(
    () => ({
      c: () => void copySummary(incident),
      ...(isOpen && { a: () => acknowledge.mutate() }),
    }),
    [incident, isOpen, acknowledge.mutate],
  );
  useKeys(bindings);
  const end = incident.resolved_at === null ? now : Date.parse(incident.resolved_at);
  const error = acknowledge.error ?? resolve.error;
  return (
    <header className="mb-4">
      {error && <ErrorNotice error={error} />}
      <div className="mb-1 flex flex-wrap items-center gap-x-3 gap-y-1 text-soft">
        <span className="font-semibold text-ink">{incident.label}</span>
        <VerdictBadge verdict={incident.verdict_class} long />
        <StatusText status={incident.status} />
        <span>
          {isResolved ? "lasted" : "for"}{" "}
          {formatAge((end - Date.parse(incident.stalled_at)) / 1000)}
        </span>
        <span>detected {formatAge(incident.what_happened.detected_after_s)} after the stall</span>
        {incident.acknowledged_by && <span>acknowledged by {incident.acknowledged_by}</span>}
      </div>
      <h1 className="mb-2 font-bold text-xl leading-snug">{incident.summary}</h1>
      <div className="flex flex-wrap items-center gap-2">
        <Link
          to="/jobs/$jobId"
          params={{ jobId: incident.job }}
          search={{}}
          className="mr-2 break-all text-accent hover:underline"
        >
          {incident.job_name || incident.job}
        </Link>
        <Button
          primary
          disabled={!isOpen || acknowledge.isPending}
          onClick={() => acknowledge.mutate()}
        >
          Acknowledge
        </Button>
        <Button disabled={isResolved || resolve.isPending} onClick={() => resolve.mutate()}>
          Resolve
        </Button>
        <Button onClick={() => void copySummary(incident)}>Copy summary</Button>
        <Download
          href={`/v1/incidents/${incident.id}/bundle`}
          title={`Evidence and records: paceline diagnose ${incident.label}.bundle`}
        >
          Download bundle
        </Download>
      </div>
    </header>
  );
}
