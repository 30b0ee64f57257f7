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
}

/** A plain table that scrolls sideways inside its panel instead of widening the page. */
export function Table<Row>({ label, columns, rows, keyOf, empty, current }: TableProps<Row>) {
  if (rows.length === 0) return <p className="py-4 text-soft">{empty}</p>;
  return (
    <div className="overflow-x-auto">
      <table aria-label={label} className="w-full border-collapse text-left">
        <thead>
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
        <tbody>
          {rows.map((row) => (
            <tr
              key={keyOf(row)}
              aria-current={current === keyOf(row) || undefined}
              className="border-line border-b last:border-0 hover:bg-raised aria-[current]:bg-raised"
            >
              {columns.map((column) => (
                <td
                  key={column.title}
                  className={`py-1.5 pr-4 align-top ${column.numeric ? "text-right" : ""}`}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
