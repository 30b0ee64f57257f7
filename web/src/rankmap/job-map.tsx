import { useMemo } from "react";
import type { Rank } from "../api/client";
import { usePlane, useRanks } from "../api/queries";
import { Notice } from "../components/panel";
import type { Coordinates } from "./layout";
import { RankMap } from "./rank-map";

interface JobMapProps {
  readonly jobId: string;
  readonly selected: number;
  readonly onSelect: (rank: number) => void;
}

/** The rank map of a job with its data: states by plane, coordinates by the registry. */
export function JobMap({ jobId, selected, onSelect }: JobMapProps) {
  const plane = usePlane(jobId);
  const ranks = useRanks(jobId);
  const byRank = useMemo(() => new Map(ranks.data?.map((rank) => [rank.rank, rank])), [ranks.data]);
  const count = plane.data?.length ?? 0;
  const coordinates = useMemo(
    () => Array.from({ length: count }, (_, rank) => coordinatesOf(byRank.get(rank))),
    [count, byRank],
  );
  if (!plane.data || count === 0) {
    return (
      <Notice>
        {plane.error ? plane.error.message : "The job has not registered its ranks yet."}
      </Notice>
    );
  }
  return (
    <RankMap
      codes={plane.data}
      coordinates={coordinates}
      selected={selected}
      onSelect={onSelect}
      describe={(rank) => describeRank(byRank.get(rank))}
    />
  );
}

function coordinatesOf(rank: Rank | undefined): Coordinates | undefined {
  if (!rank) return undefined;
  return Object.fromEntries(rank.coordinates.map(({ axis, value }) => [axis, value]));
}

function describeRank(rank: Rank | undefined): string {
  if (!rank) return "no node has registered it";
  const place = rank.gpu === null ? rank.node : `${rank.node}, GPU ${rank.gpu}`;
  const mesh = rank.coordinates.map(({ axis, value }) => `${axis} ${value}`).join(", ");
  return [place, `pid ${rank.pid}`, mesh].filter(Boolean).join(" · ");
}
