export function ErrorNotice({ error }: { readonly error: Error }) {
  return (
    <p role="alert" className="mb-3 rounded border border-hang bg-hang-wash px-3 py-2 text-hang">
      {error.message}
    </p>
  );
}
