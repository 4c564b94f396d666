use super::*;

fn read(text: &str) -> (Config, Vec<String>) {
    let mut layers = Layers::defaults();
    let mut errors = Vec::new();
    layers.read(Path::new("c.yml"), text, &mut errors);
    let sandbox = layers.sandbox(Some(Path::new("/project")), &mut errors);
    (layers.typed(sandbox), errors)
}

#[test]
fn each_key_is_set_by_its_own_variable() {
    for key in keys() {
        let name = variable(key.path);
        let set: Vec<_> = keys().filter(|other| sets(&name, other.path)).collect();
        assert!(matches!(set[..], [found] if found.path == key.path), "{name}: {set:?}");
        let none = [&name[1..], &name[..name.len() - 1], &format!("{name}_"), &name.to_lowercase()];
        assert!(none.iter().all(|name| !sets(name, key.path)), "{name}");
    }
}

#[test]
fn a_policy_can_be_named_by_one_word() {
    for text in ["mcp:\n  policy: careful\n", "mcp:\n  policy:\n    preset: careful\n"] {
        let (config, errors) = read(text);
        assert!(errors.is_empty(), "{errors:?}");
        let policy = &config.policy;
        assert_eq!((policy.preset, policy.shell), (PolicyPreset::Careful, Some(true)));
    }
    let (config, _) = read("mcp:\n  policy:\n    preset: careful\n    shell: false\n");
    assert_eq!(config.policy.shell, Some(false));
    assert_eq!(read("").0.policy.shell, None);
    let (_, errors) = read("mcp:\n  policy: carefull\n");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("mcp.policy.preset"), "{errors:?}");
}

#[test]
fn the_example_of_the_specification_is_read() {
    let (config, errors) = read(
        "# .agent/config.yml\nexecution:\n  default_timeout_seconds: 60\n  max_output_kb: 10\n  use_shell: false\n  environment:\n    mode: merge\n    allow: [CI_TOKEN, X]\n  audit:\n    enabled: true\n    retention_days: 7\n",
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(config.execution.default_timeout, Duration::from_secs(60));
    assert_eq!(config.execution.use_shell, ShellMode::Never);
    assert_eq!(config.execution.environment_allow, ["CI_TOKEN", "X"]);
    let source = &config.layers.values["execution.audit.retention_days"].1;
    assert_eq!(source.to_string(), "c.yml:11");
}

#[test]
fn all_errors_come_at_once_with_their_place() {
    let (_, errors) = read(
        "execution:\n  max_output_kbs: 1\n  use_shell: perhaps\n  default_timeout_seconds: 0\n  audit: 3\n  detach_ok: sccache\n",
    );
    assert_eq!(
        errors,
        [
            "c.yml:2:3: there is no key execution.max_output_kbs; did you mean execution.max_output_kb?",
            "c.yml:3:14: execution.use_shell: takes one of auto, true, false, not perhaps",
            "c.yml:4:28: execution.default_timeout_seconds: takes a whole number from 1 to 31536000, not 0",
            "c.yml:5:10: execution.audit takes keys and values, not a single value",
            "c.yml:6:14: execution.detach_ok: takes a list, such as [a, b]",
        ]
    );
}

#[test]
fn a_value_for_a_whole_group_suggests_the_key_that_takes_it() {
    let only = |text: &str| {
        let (_, errors) = read(text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    };
    assert_eq!(
        only("sandbox: strict\n"),
        "c.yml:1:10: sandbox takes keys and values, not a single value; did you mean sandbox.mode: strict?"
    );
    assert_eq!(
        only("sandbox: maybe\n"),
        "c.yml:1:10: sandbox takes keys and values, not a single value"
    );
    assert_eq!(
        only("sandbox: [strict]\n"),
        "c.yml:1:10: sandbox takes keys and values, not a list"
    );
}

#[test]
fn keys_of_other_tools_are_not_errors() {
    let (config, errors) = read(
        "deploy:\n  timeout: 5\n  audit: {a: 1}\ntest:\n  paths: [a]\nversion: 2\nexecution:\n  use_shell: true\n",
    );
    assert_eq!(errors, [""; 0]);
    assert_eq!(config.execution.use_shell, ShellMode::Always);
}

#[test]
fn a_key_at_the_wrong_level_says_where_it_belongs() {
    let (_, errors) =
        read("max_output_kb: 5\nexecution:\n  retention_days: 3\nexcution:\n  use_shell: true\n");
    assert_eq!(
        errors,
        [
            "c.yml:1:1: there is no key max_output_kb; max_output_kb belongs in execution",
            "c.yml:3:3: there is no key execution.retention_days; retention_days belongs in execution.audit",
            "c.yml:4:1: there is no section excution; did you mean execution?",
        ]
    );
}

#[test]
fn broken_yaml_is_an_error_with_its_place() {
    let (_, errors) = read("execution: [\n");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("c.yml:2:"), "{errors:?}");
}

#[test]
fn a_repeated_section_is_named_with_both_places() {
    let (_, errors) = read("ui:\n  port: 1\nagent:\n  kind: codex\n# x\nagent:\n  mcp: true\n");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("the key agent is in line 3 and again in line 6"), "{errors:?}");
}

#[test]
fn the_file_of_init_is_valid_and_equals_the_defaults() {
    let text = retake_types::config::commented_defaults();
    let (_, errors) = read(&text);
    assert!(errors.is_empty(), "{errors:?}");
    let uncommented: String = text
        .lines()
        .filter_map(|l| l.strip_prefix("# "))
        .filter(|l| l.contains(':') && !l.trim_start().starts_with('#'))
        .map(|l| format!("{l}\n"))
        .collect();
    let (config, errors) = read(&uncommented);
    assert!(errors.is_empty(), "{uncommented}\n{errors:?}");
    let (defaults, _) = read("");
    for (path, value, _) in config.entries() {
        assert_eq!(value, &defaults.layers.values[path].0, "{path}");
    }
}
