import type { MapLayout } from "./layout";
import { CELL_STATES, stateOf } from "./states";

/** Colours of the current theme, read once for each draw. */
export interface Palette {
  readonly cells: readonly string[];
  readonly ink: string;
  readonly paper: string;
}

export function readPalette(element: Element): Palette {
  const style = getComputedStyle(element);
  const token = (name: string) => style.getPropertyValue(name).trim();
  return {
    cells: CELL_STATES.map((state) => token(state.token)),
    ink: token("--ink"),
    paper: token("--surface"),
  };
}

/** Below this cell size in CSS pixels numbers and glyphs are unreadable and gaps waste space. */
export const GLYPH_PX_MIN = 18;

export interface Geometry {
  readonly cellPx: number;
  readonly width: number;
  readonly height: number;
}

export function measure(layout: MapLayout, widthPx: number): Geometry {
  const cellPx = Math.max(2, Math.min(44, Math.floor(widthPx / layout.columns)));
  return { cellPx, width: cellPx * layout.columns, height: cellPx * layout.rows };
}

/** One pixel for each cell, scaled by the browser: 100,000 cells cost well under a millisecond. */
export function drawCells(
  canvas: HTMLCanvasElement,
  layout: MapLayout,
  codes: Uint8Array,
  palette: Palette,
): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  canvas.width = layout.columns;
  canvas.height = layout.rows;
  const image = context.createImageData(layout.columns, layout.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = palette.cells.map(packColour);
  for (let rank = 0; rank < codes.length; rank++) {
    const cell = layout.cellOf[rank];
    if (cell !== undefined) pixels[cell] = colours[codes[rank] ?? 0] ?? colours[0] ?? 0;
  }
  context.putImageData(image, 0, 0);
}

export function packColour(hex: string): number {
  const value = Number.parseInt(hex.slice(1), 16);
  const [red, green, blue] = [(value >> 16) & 255, (value >> 8) & 255, value & 255];
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Grid, glyphs and the selected cell; colour never is the only sign. */
export function drawOverlay(
  canvas: HTMLCanvasElement,
  layout: MapLayout,
  codes: Uint8Array,
  palette: Palette,
  geometry: Geometry,
  selected: number,
): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = geometry.width * ratio;
  canvas.height = geometry.height * ratio;
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(ratio, ratio);
  const { cellPx } = geometry;
  if (cellPx >= GLYPH_PX_MIN) drawLabels(context, layout, codes, palette, cellPx);
  const cell = layout.cellOf[selected];
  if (cell === undefined) return;
  context.strokeStyle = palette.ink;
  context.lineWidth = 2;
  const [column, row] = [cell % layout.columns, Math.floor(cell / layout.columns)];
  context.strokeRect(column * cellPx + 1, row * cellPx + 1, cellPx - 2, cellPx - 2);
}

function drawLabels(
  context: CanvasRenderingContext2D,
  layout: MapLayout,
  codes: Uint8Array,
  palette: Palette,
  cellPx: number,
): void {
  context.strokeStyle = palette.paper;
  context.lineWidth = 2;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `600 ${Math.min(13, cellPx * 0.38)}px system-ui, sans-serif`;
  for (let rank = 0; rank < codes.length; rank++) {
    const cell = layout.cellOf[rank] ?? 0;
    const [x, y] = [(cell % layout.columns) * cellPx, Math.floor(cell / layout.columns) * cellPx];
    context.strokeRect(x, y, cellPx, cellPx);
    const code = codes[rank] ?? 0;
    context.fillStyle = contrastColour(palette.cells[code] ?? palette.paper);
    context.fillText(`${stateOf(code).glyph}${rank}`, x + cellPx / 2, y + cellPx / 2 + 1);
  }
}

/** Near-black or white, whichever reads better on `hex` (relative luminance of WCAG 2). */
export function contrastColour(hex: string): string {
  const value = Number.parseInt(hex.slice(1), 16);
  const channel = (shift: number) => {
    const part = ((value >> shift) & 255) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  };
  const luminance = 0.2126 * channel(16) + 0.7152 * channel(8) + 0.0722 * channel(0);
  return luminance > 0.179 ? "#0b0f14" : "#ffffff";
}
