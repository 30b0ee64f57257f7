import {
  createContext,
  type ReactNode,
  useContext,
  useEffect,
  useLayoutEffect,
  useMemo,
  useState,
} from "react";

export type Theme = "light" | "dark";
export type ThemeChoice = Theme | "system";

const KEY = "paceline.theme";
const query = "(prefers-color-scheme: dark)";

interface ThemeState {
  readonly theme: Theme;
  readonly choice: ThemeChoice;
  readonly choose: (choice: ThemeChoice) => void;
}

const ThemeContext = createContext<ThemeState>({
  theme: "light",
  choice: "system",
  choose: () => {},
});

export function resolveTheme(choice: ThemeChoice, systemIsDark: boolean): Theme {
  if (choice !== "system") return choice;
  return systemIsDark ? "dark" : "light";
}

function storedChoice(): ThemeChoice {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function ThemeProvider({ children }: { readonly children: ReactNode }) {
  const [choice, setChoice] = useState<ThemeChoice>(storedChoice);
  const [systemIsDark, setSystemIsDark] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const listen = () => setSystemIsDark(media.matches);
    media.addEventListener("change", listen);
    return () => media.removeEventListener("change", listen);
  }, []);
  const theme = resolveTheme(choice, systemIsDark);
  // Before any canvas below reads its colours from the theme.
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const state = useMemo(() => {
    const choose = (next: ThemeChoice) => {
      localStorage.setItem(KEY, next);
      setChoice(next);
    };
    return { theme, choice, choose };
  }, [theme, choice]);
  return <ThemeContext value={state}>{children}</ThemeContext>;
}

export function useTheme(): ThemeState {
  return useContext(ThemeContext);
}
