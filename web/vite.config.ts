/// <reference types="vitest/config" />
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const apiUrl = process.env.PACELINE_API_URL ?? "http://127.0.0.1:8300";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  server: { proxy: { "/v1": apiUrl } },
  build: { target: "es2022", sourcemap: false, chunkSizeWarningLimit: 900 },
  test: { environment: "happy-dom", include: ["test/**/*.test.{ts,tsx}"] },
});
