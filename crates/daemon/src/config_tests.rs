use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("w.toml")).map_err(|e| e.to_string())
}

#[test]
fn the_shipped_file_equals_the_defaults() {
    let shipped = include_str!("../../../packaging/whet.toml");
    assert_eq!(parse(shipped), Ok(Config::default()));
    // The same holds for the file with every key taken out of its comment.
    let all: String = shipped.lines().map(|l| format!("{}\n", l.strip_prefix("#:").unwrap_or(l))).collect();
    let config = parse(&all).unwrap();
    assert_eq!(
        Config {
            target: Config::default().target,
            take: Take { quiet_hours: Vec::new(), ..config.take.clone() },
            rollout: Rollout { stops_per_minute: None, ..config.rollout.clone() },
            fleet: Fleet::default(),
            paths: Paths { metrics: None, ..config.paths.clone() },
            ..config.clone()
        },
        Config::default()
    );
    // The file describes every key.
    for key in [
        "exe",
        "cgroup",
        "cpu_percent",
        "min_age",
        "warm_min_age",
        "at_once",
        "max_targets",
        "quiet_hours",
        "every",
        "sampling",
        "counting",
        "memory_cap",
        "code_cache",
        "share_drop_percent",
        "drift_percent",
        "min_interval",
        "judge",
        "within",
        "min_gain_percent",
        "observe",
        "freeze",
        "share_percent",
        "start_jitter",
        "stops_per_minute",
        "spool",
        "keys",
        "class",
        "socket",
        "state",
        "kill_switch",
        "metrics",
        "optimize_once",
    ] {
        assert!(all.lines().any(|l| l.split(" = ").next() == Some(key)), "{key} is not documented");
        let man = include_str!("../../../packaging/whet.toml.5");
        let named = |l: &str| l.strip_prefix(".BR ").and_then(|l| l.split(' ').next()) == Some(key);
        assert!(man.lines().any(named), "{key} is not in the man page");
    }
    assert_eq!(config.target.len(), 4, "every form of rule is shown");
    assert!(!config.take.quiet_hours.is_empty() && config.paths.metrics.is_some());
}

#[test]
fn mistakes_are_reported_with_line_and_column() {
    let at = |text: &str| parse(text).unwrap_err();
    assert!(
        at("optimize_once = true\n[take]\n  cpu_precent = 3\n")
            .starts_with("w.toml:3:3: unknown field `cpu_precent`"),
        "{}",
        at("[take]\n  cpu_precent = 3\n")
    );
    assert!(
        at("[take]\nmin_age = \"soon\"\n").starts_with("w.toml:2:11: \"soon\" is no duration"),
        "{}",
        at("[take]\nmin_age = \"soon\"\n")
    );
    assert!(at("[take]\nat_once = \"two\"\n").starts_with("w.toml:2:11: invalid type"));
    assert!(at("[take\n").starts_with("w.toml:1:6: "), "{}", at("[take\n"));
    assert_eq!(
        at("[harm]\nwithin = \"9s\"\n[take]\n  at_once = 0\n"),
        "w.toml:4:3: at_once: must be from 1 to 64"
    );
    assert!(at("\n[[target]]\nexe = \"bin/x\"\n").starts_with("w.toml:2:1: target: "));
    assert!(at("[[target]]\n").starts_with("w.toml:1:1: target: "));
    assert_eq!(at("[paths]\nsocket = \"x\"\n"), "w.toml:2:1: socket: must begin with /");
    assert_eq!(at("take.every = \"1ms\"\n"), "w.toml:1:1: every: must be 200ms or more");
    assert!(at("[take]\ncpu_percent = nan\n").contains(":2:1: cpu_percent: "));
}

#[test]
fn any_text_is_read_or_refused() {
    arbtest::arbtest(|u| {
        let text: String = u.arbitrary()?;
        let _ = Config::parse(&text, Path::new("w"));
        let _ =
            Config::parse(&format!("[take]\nevery = \"{text}\"\nquiet_hours = ['{text}']"), Path::new("w"));
        Ok(())
    })
    .budget_ms(300);
}
