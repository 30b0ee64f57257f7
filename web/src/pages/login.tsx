import { type FormEvent, useState } from "react";
import { useSignIn } from "../api/queries";
import { Button } from "../components/button";

export function LoginPage() {
  const [token, setToken] = useState("");
  const signIn = useSignIn();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    signIn.mutate(token.trim());
  };
  return (
    <main className="mx-auto mt-[12vh] max-w-md px-4">
      <h1 className="mb-1 font-bold text-xl">Paceline</h1>
      <p className="mb-5 text-soft">
        Sign in with an access token. The first one was printed when Paceline started for the first
        time.
      </p>
      <form onSubmit={submit} className="rounded-lg border border-line bg-surface p-5">
        <label className="block">
          <span className="mb-1 block font-medium">Access token</span>
          <input
            type="password"
            autoComplete="current-password"
            value={token}
            onChange={(event) => setToken(event.target.value)}
            className="mb-3 w-full rounded border border-line-strong bg-canvas px-3 py-1.5 font-mono"
          />
        </label>
        {signIn.error && (
          <p role="alert" className="mb-3 text-hang">
            {signIn.error.message}
          </p>
        )}
        <Button primary type="submit" disabled={token === "" || signIn.isPending}>
          Sign in
        </Button>
      </form>
    </main>
  );
}
