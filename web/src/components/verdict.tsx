/** Classes of verdicts as people read them: word, colour and a sign that is not colour. */
interface VerdictStyle {
  readonly title: string;
  readonly className: string;
  readonly sign: string;
}

const HANG = "bg-hang-wash text-hang border-hang";
const SLOW = "bg-slow-wash text-slow border-slow";
const KNOT = "bg-knot-wash text-knot border-knot";
const UNSURE = "bg-unsure-wash text-unsure border-unsure";

const STYLES: Readonly<Record<string, VerdictStyle>> = {
  H1: { title: "never entered", className: HANG, sign: "■" },
  H2: { title: "operations disagree", className: HANG, sign: "■" },
  H3: { title: "no progress", className: HANG, sign: "■" },
  DEAD_PROCESS: { title: "process died", className: HANG, sign: "†" },
  S1: { title: "late rank", className: SLOW, sign: "▲" },
  S2: { title: "slow link", className: SLOW, sign: "▲" },
  S3: { title: "late rank and slow link", className: SLOW, sign: "▲" },
  DEADLOCK: { title: "order inversion", className: KNOT, sign: "∞" },
  INIT: { title: "stuck at start", className: KNOT, sign: "◇" },
  INCONCLUSIVE: { title: "not decided", className: UNSURE, sign: "?" },
  NONE: { title: "healthy", className: "bg-good-wash text-good border-good", sign: "✓" },
};

export function verdictStyle(verdict: string): VerdictStyle {
  return STYLES[verdict] ?? { title: verdict, className: UNSURE, sign: "?" };
}

export function VerdictBadge({ verdict, long = false }: { verdict: string; long?: boolean }) {
  const style = verdictStyle(verdict);
  return (
    <span
      className={`inline-flex items-center gap-1.5 whitespace-nowrap rounded border px-1.5 py-0.5 font-semibold text-xs ${style.className}`}
      title={style.title}
    >
      <span aria-hidden="true">{style.sign}</span>
      {verdict}
      {long && <span className="font-normal">{style.title}</span>}
    </span>
  );
}

const STATUS: Readonly<Record<string, string>> = {
  open: "text-hang",
  acknowledged: "text-slow",
  resolved: "text-good",
};

export function StatusText({ status }: { status: string }) {
  return <span className={`font-semibold ${STATUS[status] ?? "text-soft"}`}>{status}</span>;
}
