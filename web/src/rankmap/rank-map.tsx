import { type KeyboardEvent, type MouseEvent, useEffect, useMemo, useRef, useState } from "react";
import { useTheme } from "../lib/theme";
import { drawCells, drawOverlay, GLYPH_PX_MIN, measure, readPalette } from "./draw";
import { buildLayout, type Coordinates, neighbour } from "./layout";
import { CELL_STATES, stateOf, summarise } from "./states";

/** Room for the row labels beside the map, in CSS pixels. */
const LABEL_PX = 72;

interface RankMapProps {
  readonly codes: Uint8Array;
  readonly coordinates: readonly (Coordinates | undefined)[];
  readonly selected: number;
  readonly onSelect: (rank: number) => void;
  readonly describe?: (rank: number) => string;
}

/** One canvas for the whole job; one tab stop, arrow keys move the cursor and announce the cell. */
export function RankMap({ codes, coordinates, selected, onSelect, describe }: RankMapProps) {
  const frame = useRef<HTMLDivElement>(null);
  const cells = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  const { theme } = useTheme();
  const layout = useMemo(() => buildLayout(coordinates), [coordinates]);
  const geometry = useMemo(() => measure(layout, width - LABEL_PX), [layout, width]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: the palette is read from the theme's CSS
  useEffect(() => {
    if (!cells.current || !overlay.current) return;
    const palette = readPalette(document.documentElement);
    drawCells(cells.current, layout, codes, palette);
    drawOverlay(overlay.current, layout, codes, palette, geometry, selected);
  }, [layout, codes, geometry, selected, theme]);

  const onClick = (event: MouseEvent<HTMLDivElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / geometry.cellPx);
    const row = Math.floor((event.clientY - box.top) / geometry.cellPx);
    const rank = layout.rankAt[row * layout.columns + column];
    if (rank !== undefined && rank >= 0) onSelect(rank);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const next = neighbour(layout, selected, event.key);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    onSelect(next);
  };
  const cellText = `rank ${selected}: ${stateOf(codes[selected] ?? 0).name}${describe ? `, ${describe(selected)}` : ""}`;
  const size = { width: geometry.width, height: geometry.height };
  return (
    <div ref={frame}>
      <div className="flex gap-2">
        <RowLabels labels={layout.rowLabels} cellPx={geometry.cellPx} />
        <div
          role="application"
          aria-label={`Rank map. ${summarise(codes)}. Arrow keys move between ranks.`}
          // biome-ignore lint/a11y/noNoninteractiveTabindex: the map is one tab stop with a roving cursor
          tabIndex={0}
          className="relative cursor-crosshair overflow-hidden rounded"
          style={size}
          onClick={onClick}
          onKeyDown={onKeyDown}
        >
          <canvas
            ref={cells}
            className="absolute inset-0"
            style={{ ...size, imageRendering: "pixelated" }}
          />
          <canvas ref={overlay} className="absolute inset-0" style={size} />
        </div>
      </div>
      <p className="mt-2 text-soft" aria-live="polite">
        {cellText}
      </p>
      <Legend />
    </div>
  );
}

/** Coordinates of each row, where rows are tall enough to read them. */
function RowLabels({
  labels,
  cellPx,
}: {
  readonly labels: readonly string[];
  readonly cellPx: number;
}) {
  if (cellPx < GLYPH_PX_MIN) return null;
  return (
    <ul aria-hidden="true" className="shrink-0 text-right text-soft text-xs">
      {labels.map((label) => (
        <li key={label} className="flex items-center justify-end" style={{ height: cellPx }}>
          {label}
        </li>
      ))}
    </ul>
  );
}

function Legend() {
  return (
    <ul className="mt-1 flex flex-wrap gap-x-4 gap-y-1 text-soft text-xs">
      {CELL_STATES.map((state) => (
        <li key={state.name} className="flex items-center gap-1.5">
          <span
            aria-hidden="true"
            className="inline-block size-3 rounded-sm"
            style={{ background: `var(${state.token})` }}
          />
          {state.name} {state.glyph && <span aria-hidden="true">({state.glyph})</span>}
        </li>
      ))}
    </ul>
  );
}

function useWidth(element: React.RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(480);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [element]);
  return width;
}
