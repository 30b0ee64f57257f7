import { describe, expect, it } from "vitest";
import { contrastColour, measure, packColour } from "../src/rankmap/draw";
import { buildLayout, neighbour } from "../src/rankmap/layout";
import { summarise } from "../src/rankmap/states";

const MESH = [0, 1, 2, 3, 4, 5, 6, 7].map((rank) => ({
  tp: rank % 2,
  pp: Math.floor(rank / 2) % 2,
  dp: Math.floor(rank / 4),
}));

describe("layout", () => {
  it("puts the tensor coordinate in columns and the others in rows", () => {
    const layout = buildLayout(MESH);
    expect([layout.columns, layout.rows]).toEqual([2, 4]);
    expect(layout.rowLabels).toEqual(["dp0 pp0", "dp0 pp1", "dp1 pp0", "dp1 pp1"]);
    expect([...layout.rankAt]).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it("falls back to rows of ranks where a rank has no coordinates or two share a cell", () => {
    expect(buildLayout([...MESH.slice(0, 7), undefined]).columns).toBe(8);
    expect(buildLayout([{ tp: 0 }, { tp: 0 }]).columns).toBe(2);
    expect(buildLayout([]).rows).toBe(1);
  });

  it("moves by arrow keys and stays at the edges", () => {
    const layout = buildLayout(MESH);
    expect(neighbour(layout, 0, "ArrowRight")).toBe(1);
    expect(neighbour(layout, 1, "ArrowRight")).toBe(1);
    expect(neighbour(layout, 1, "ArrowDown")).toBe(3);
    expect(neighbour(layout, 0, "ArrowUp")).toBe(0);
    expect(neighbour(layout, 0, "x")).toBe(0);
  });
});

describe("drawing", () => {
  it("packs a colour as little-endian RGBA", () => {
    expect(packColour("#112233")).toBe(0xff332211);
  });

  it("chooses the text colour by luminance", () => {
    expect(contrastColour("#ffffff")).toBe("#0b0f14");
    expect(contrastColour("#b3261e")).toBe("#ffffff");
  });

  it("keeps cells between 2 and 44 pixels", () => {
    expect(measure(buildLayout(MESH), 480).cellPx).toBe(44);
    const large = buildLayout(Array.from({ length: 100_000 }, () => undefined));
    expect(measure(large, 600).cellPx).toBe(2);
  });
});

it("says in words what the map shows, worst first", () => {
  expect(summarise(Uint8Array.from([1, 1, 2, 3]))).toBe(
    "4 ranks: 1 first cause, 1 waiting, 2 running",
  );
  expect(summarise(Uint8Array.from([99]))).toBe("1 ranks: 1 unknown");
});
