import type { ReactNode } from "react";

export interface Column<Row> {
  readonly title: string;
  readonly cell: (row: Row) => ReactNode;
  readonly numeric?: boolean;
}

interface TableProps<Row> {
  readonly label: string;
  readonly columns: readonly Column<Row>[];
  readonly rows: readonly Row[];
  readonly keyOf: (row: Row) => string;
  readonly empty: string;
  readonly current?: string;
  /** Where its panel is narrow each row becomes a list of titled values, and nothing scrolls sideways. */
  readonly stacks?: boolean;
}

const STACKED = {
  block: "@max-2xl:block",
  head: "@max-2xl:sr-only",
  cell: "@max-2xl:flex @max-2xl:gap-2 @max-2xl:py-0.5 @max-2xl:pr-0 @max-2xl:text-left",
  title:
    "@max-2xl:before:w-24 @max-2xl:before:flex-none @max-2xl:before:text-soft @max-2xl:before:text-xs @max-2xl:before:content-[attr(data-title)]",
} as const;

/** A plain table that scrolls sideways inside its panel, or stacks, instead of widening the page. */
export function Table<Row>({
  label,
  columns,
  rows,
  keyOf,
  empty,
  current,
  stacks = false,
}: TableProps<Row>) {
  if (rows.length === 0) return <p className="py-4 text-soft">{empty}</p>;
  const block = stacks ? STACKED.block : "";
  return (
    <div className={stacks ? "@container" : "overflow-x-auto"}>
      <table aria-label={label} className={`w-full border-collapse text-left ${block}`}>
        <thead className={stacks ? STACKED.head : ""}>
          <tr className="border-line border-b text-soft text-xs">
            {columns.map((column) => (
              <th
                key={column.title}
                scope="col"
                className={`whitespace-nowrap py-1.5 pr-4 font-medium ${column.numeric ? "text-right" : ""}`}
              >
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className={block}>
          {rows.map((row) => (
            <tr
              key={keyOf(row)}
              aria-current={current === keyOf(row) || undefined}
              className={`border-line border-b last:border-0 hover:bg-raised aria-[current]:bg-raised ${stacks ? "@max-2xl:block @max-2xl:py-2" : ""}`}
            >
              {columns.map((column) => (
                <td
                  key={column.title}
                  data-title={stacks ? column.title : undefined}
                  className={`py-1.5 pr-4 align-top ${column.numeric ? "text-right" : ""} ${stacks ? STACKED.cell : ""} ${stacks && column.title ? STACKED.title : ""}`}
                >
                  {stacks ? <div className="min-w-0">{column.cell(row)}</div> : column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
