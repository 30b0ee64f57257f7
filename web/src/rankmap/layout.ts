/** Where each rank is drawn: rows are pipeline and data coordinates, cells the tensor coordinate. */

export type Coordinates = Readonly<Record<string, number>>;

export interface MapLayout {
  readonly columns: number;
  readonly rows: number;
  /** rank -> cell index (row * columns + column) */
  readonly cellOf: Int32Array;
  /** cell index -> rank, -1 where a cell is empty */
  readonly rankAt: Int32Array;
  readonly rowLabels: readonly string[];
}

const ROW_AXES = ["dp", "pp", "ep", "cp"];
const COLUMNS_WITHOUT_COORDINATES = 32;

export function buildLayout(coordinates: readonly (Coordinates | undefined)[]): MapLayout {
  const count = coordinates.length;
  const known = count > 0 && coordinates.every((entry) => entry !== undefined && "tp" in entry);
  return known ? meshLayout(coordinates as readonly Coordinates[]) : plainLayout(count);
}

function plainLayout(count: number): MapLayout {
  const columns = Math.max(1, Math.min(count, bestColumns(count)));
  const rows = Math.max(1, Math.ceil(count / columns));
  const cellOf = Int32Array.from({ length: count }, (_, rank) => rank);
  const rankAt = new Int32Array(columns * rows).fill(-1);
  for (let rank = 0; rank < count; rank++) rankAt[rank] = rank;
  const rowLabels = Array.from({ length: rows }, (_, row) => `${row * columns}`);
  return { columns, rows, cellOf, rankAt, rowLabels };
}

function bestColumns(count: number): number {
  return count <= 64 ? 8 : Math.max(COLUMNS_WITHOUT_COORDINATES, Math.ceil(Math.sqrt(count * 2)));
}

function meshLayout(coordinates: readonly Coordinates[]): MapLayout {
  const axes = ROW_AXES.filter((axis) => coordinates.some((entry) => axis in entry));
  const keyOf = (entry: Coordinates) => axes.map((axis) => entry[axis] ?? 0);
  const keys = new Map<string, number[]>();
  for (const entry of coordinates) keys.set(keyOf(entry).join(), keyOf(entry));
  const sorted = [...keys.values()].sort(compareKeys);
  const rowOf = new Map(sorted.map((key, row) => [key.join(), row]));
  const columns = 1 + Math.max(...coordinates.map((entry) => entry.tp ?? 0));
  const cellOf = new Int32Array(coordinates.length);
  const rankAt = new Int32Array(columns * sorted.length).fill(-1);
  for (const [rank, entry] of coordinates.entries()) {
    const cell = (rowOf.get(keyOf(entry).join()) ?? 0) * columns + (entry.tp ?? 0);
    if (rankAt[cell] !== -1) return plainLayout(coordinates.length);
    cellOf[rank] = cell;
    rankAt[cell] = rank;
  }
  const rowLabels = sorted.map((key) => key.map((value, at) => `${axes[at]}${value}`).join(" "));
  return { columns, rows: sorted.length, cellOf, rankAt, rowLabels };
}

function compareKeys(left: readonly number[], right: readonly number[]): number {
  for (const [index, value] of left.entries()) {
    const difference = value - (right[index] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** The rank reached from `rank` by an arrow key; the same rank at an edge. */
export function neighbour(layout: MapLayout, rank: number, key: string): number {
  const step = {
    ArrowLeft: -1,
    ArrowRight: 1,
    ArrowUp: -layout.columns,
    ArrowDown: layout.columns,
  }[key];
  const cell = layout.cellOf[rank];
  if (step === undefined || cell === undefined) return rank;
  const column = cell % layout.columns;
  if ((step === -1 && column === 0) || (step === 1 && column === layout.columns - 1)) return rank;
  const next = layout.rankAt[cell + step];
  return next === undefined || next < 0 ? rank : next;
}
