/** State codes of one cell, as the plane endpoint sends them: one byte for each rank. */
export const CELL_STATES = [
  { code: 0, name: "unknown", token: "--cell-unknown", glyph: "?" },
  { code: 1, name: "running", token: "--cell-healthy", glyph: "" },
  { code: 2, name: "waiting", token: "--cell-waiting", glyph: "·" },
  { code: 3, name: "first cause", token: "--cell-root", glyph: "×" },
  { code: 4, name: "slow", token: "--cell-slow", glyph: "▲" },
  { code: 5, name: "dead", token: "--cell-dead", glyph: "†" },
  { code: 6, name: "ended", token: "--cell-ended", glyph: "–" },
] as const;

export type CellState = (typeof CELL_STATES)[number];

export function stateOf(code: number): CellState {
  return CELL_STATES[code] ?? CELL_STATES[0];
}

/** One sentence for people who cannot see the map. */
export function summarise(codes: Uint8Array): string {
  const counts = new Map<string, number>();
  for (const code of codes) {
    const { name } = stateOf(code);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const parts = CELL_STATES.filter((state) => counts.has(state.name))
    .map((state) => `${counts.get(state.name)} ${state.name}`)
    .reverse();
  return `${codes.length} ranks: ${parts.join(", ")}`;
}
