import type { AnchorHTMLAttributes, ButtonHTMLAttributes } from "react";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { readonly primary?: boolean };

const SHAPE = "rounded border px-3 py-1 font-medium";
const PLAIN = "border-line-strong bg-surface text-ink hover:bg-raised";

export function Button({ primary = false, className = "", ...rest }: ButtonProps) {
  const look = primary ? "border-accent bg-accent text-accent-ink" : PLAIN;
  return (
    <button
      type="button"
      className={`${SHAPE} disabled:cursor-not-allowed disabled:opacity-60 ${look} ${className}`}
      {...rest}
    />
  );
}

/** A file of the API, saved by the browser; it looks like a button. */
export function Download(
  props: AnchorHTMLAttributes<HTMLAnchorElement> & { readonly href: string },
) {
  return <a download className={`${SHAPE} ${PLAIN}`} {...props} />;
}
