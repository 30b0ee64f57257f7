import type { ButtonHTMLAttributes } from "react";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { readonly primary?: boolean };

export function Button({ primary = false, className = "", ...rest }: ButtonProps) {
  const look = primary
    ? "border-accent bg-accent text-accent-ink"
    : "border-line-strong bg-surface text-ink hover:bg-raised";
  return (
    <button
      type="button"
      className={`rounded border px-3 py-1 font-medium disabled:cursor-not-allowed disabled:opacity-60 ${look} ${className}`}
      {...rest}
    />
  );
}
