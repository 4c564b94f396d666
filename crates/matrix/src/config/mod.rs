//! `matrix.yml`, and the compatible `chrome-ranger.yaml`: what to run, with which values, how
//! often.
//!
//! All errors are reported at once, each with its line. An unknown key is an error with a
//! suggestion; in a `chrome-ranger.yaml`, whose own program ignores unknown keys, it is a warning.

mod command;
mod keys;
mod metrics;
mod nodes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use command::{COMMAND, CommandConfig, NamedCommand, fill, uses};
pub use keys::check_axis_name;
pub use metrics::MetricConfig;

use crate::browsers::BrowserRequest;
use crate::table::Axis;
use retake_types::loop_record::matrix::IgnoreFailure;
use retake_types::{Better, LoopId, ShellMode};

/// The configuration files, in search order.
pub const FILES: [&str; 4] =
    ["matrix.yml", "matrix.yaml", "chrome-ranger.yaml", "chrome-ranger.yml"];

/// The two axes with a special meaning.
pub const CHROME: &str = "chrome";
pub const CODE: &str = "code";

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub file: PathBuf,
    pub command: CommandConfig,
    /// Whether `{axis}` in the command, hooks and the setup without code stands for the value.
    /// A `chrome-ranger.yaml` works as it does in its own program, which replaces nothing.
    pub fills_values: bool,
    /// Whether the command may go through a shell.
    pub shell: ShellMode,
    /// Failures that count as results.
    pub ignore_failure: IgnoreFailure,
    /// Makes its cells different from all recorded ones: no earlier run counts, and later
    /// invocations do not use these.
    pub fresh: Option<LoopId>,
    pub setup: Option<String>,
    /// Before each iteration, not measured.
    pub prepare: Option<String>,
    /// After each iteration, not measured.
    pub conclude: Option<String>,
    /// Once for each cell, after its last iteration.
    pub cleanup: Option<String>,
    pub reset: ResetMode,
    pub iterations: u64,
    pub warmup: u64,
    pub workers: usize,
    pub chrome: Option<ChromeConfig>,
    pub code: Option<CodeConfig>,
    /// Additional axes, in the order of the file.
    pub axes: Vec<Axis>,
    pub exclude: Vec<BTreeMap<String, String>>,
    pub include: Vec<BTreeMap<String, String>>,
    pub timeout: Option<Duration>,
    pub order: Order,
    pub metrics: Vec<MetricConfig>,
    pub env: BTreeMap<String, String>,
    /// Suspicious parts that are not errors.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChromeConfig {
    /// As written, without repeats. Those that only `include` names come last.
    pub versions: Vec<String>,
    pub requests: BTreeMap<String, BrowserRequest>,
    pub cache_dir: Option<PathBuf>,
    pub index_url: Option<String>,
    pub download_url: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CodeConfig {
    /// Absolute, or relative to the current directory like the configuration file itself.
    pub repo: PathBuf,
    pub refs: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each iteration of all cells in a new random order.
    #[default]
    Interleaved,
    /// All iterations of a cell, then the next cell.
    Blocked,
}

impl Order {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::Blocked => "blocked",
        }
    }
}

/// When the tree of a ref is reset to its state after setup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetMode {
    /// Before every iteration, so that none sees effects of another.
    #[default]
    Iteration,
    /// At the start of every run.
    Run,
    Never,
}

impl ResetMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iteration => "iteration",
            Self::Run => "run",
            Self::Never => "never",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("there is no {} here", FILES[0])]
    Missing,
    #[error("{}: {}", .path.display(), retake_types::text::plain(.error))]
    Unreadable { path: PathBuf, error: std::io::Error },
    /// Every error, each with its place.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

impl Config {
    /// One iteration of a command, relative to a file, with defaults for everything else.
    pub fn new(file: &Path, command: CommandConfig) -> Self {
        Self {
            file: file.to_owned(),
            command,
            fills_values: true,
            shell: ShellMode::default(),
            ignore_failure: IgnoreFailure::default(),
            fresh: None,
            setup: None,
            prepare: None,
            conclude: None,
            cleanup: None,
            reset: ResetMode::default(),
            iterations: 1,
            warmup: 0,
            workers: 1,
            chrome: None,
            code: None,
            axes: Vec::new(),
            exclude: Vec::new(),
            include: Vec::new(),
            timeout: None,
            order: Order::default(),
            metrics: Vec::new(),
            env: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }

    /// Searches a directory for a configuration.
    pub fn find(directory: &Path) -> Result<PathBuf, ConfigError> {
        let found = FILES.iter().map(|name| directory.join(name)).find(|path| path.is_file());
        found.ok_or(ConfigError::Missing)
    }

    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = retake_runner::regular_file::read_text(file)
            .map_err(|error| ConfigError::Unreadable { path: file.to_owned(), error })?;
        Self::read(file, &text)
    }

    /// Reads the text of a file.
    pub fn read(file: &Path, text: &str) -> Result<Self, ConfigError> {
        keys::read(file, text).map_err(ConfigError::Invalid)
    }

    /// The axes of the matrix: browsers, refs, then the others, each in the order of the file, and
    /// commands last, so that they are adjacent in tables.
    pub fn all_axes(&self) -> Vec<Axis> {
        let axis =
            |name: &str, values: &[String]| Axis { name: name.into(), values: values.to_vec() };
        let chrome = self.chrome.iter().map(|c| axis(CHROME, &c.versions));
        let code = self.code.iter().map(|c| axis(CODE, &c.refs));
        let names: Vec<String> = self.command.several().iter().map(|c| c.name.clone()).collect();
        let commands = (!names.is_empty()).then(|| axis(COMMAND, &names));
        chrome.chain(code).chain(self.axes.iter().cloned()).chain(commands).collect()
    }

    /// Every value of an axis that some cell may need, including those from `include`.
    pub fn wanted(&self, axis: &str) -> Vec<String> {
        let listed = self.all_axes().into_iter().find(|a| a.name == axis).map(|a| a.values);
        let mut wanted = listed.unwrap_or_default();
        for value in self.include.iter().filter_map(|values| values.get(axis)) {
            if !wanted.contains(value) {
                wanted.push(value.clone());
            }
        }
        wanted
    }

    /// The hooks around the iterations of a cell.
    pub fn hooks(&self) -> impl Iterator<Item = &'static str> {
        let hooks =
            [("prepare", &self.prepare), ("conclude", &self.conclude), ("cleanup", &self.cleanup)];
        hooks.into_iter().filter(|(_, text)| text.is_some()).map(|(name, _)| name)
    }

    /// The better direction of a metric: as the run reports, as configured, or lower.
    pub fn better(&self, metric: &str) -> Better {
        let found = self.metrics.iter().find(|m| m.name == metric);
        found.and_then(|m| m.better).unwrap_or_default()
    }
}

/// Where `matrix init` writes its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePlace {
    /// A repository, with the branch or commit that is checked out.
    Repository {
        checked_out: String,
    },
    NoRepository,
}

/// The content that `matrix init` writes. Without a repository the refs are a comment.
pub fn template(place: &TemplatePlace) -> String {
    match place {
        TemplatePlace::Repository { checked_out } => {
            TEMPLATE.replace("  refs: [main]", &format!("  refs: [{}]", yaml_word(checked_out)))
        }
        TemplatePlace::NoRepository => {
            TEMPLATE.replace(CODE_SECTION, &CODE_SECTION.replace('\n', "\n# ")).replace(
                "Runs in a worktree of its own for each ref, through",
                "Runs in this directory (in a worktree for each ref if there is `code`), through",
            )
        }
    }
}

/// A name as YAML: in quotes where it could be read as something else.
fn yaml_word(name: &str) -> String {
    let is_plain = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&&*name.to_ascii_lowercase());
    // A text in JSON is one in YAML.
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

/// The part of the template that needs a repository.
const CODE_SECTION: &str = "\ncode:\n  repo: .\n  refs: [main]";

/// The whole template.
pub const TEMPLATE: &str = "\
# What to run, over which values, how often. See `retake matrix --help`.

# Runs in a worktree of its own for each ref, through sh -c where it needs a shell, with CODE_REF,
# CODE_SHA, CODE_DIR and ITERATION set (and CHROME_BIN and CHROME_VERSION where there are browsers).
command: npm test

# Runs once in each worktree. Before every iteration the worktree is reset to the state after it.
# setup: npm ci

# Before and after each iteration, not measured; once for each cell at the end.
# prepare: ./start-server
# conclude: ./stop-server
# cleanup: ./remove-data

iterations: 5
warmup: 1
workers: 1

# Branches, tags and commits to compare, the baseline first, such as [v1.0, main].
code:
  repo: .
  refs: [main]

# Browsers: four parts, a milestone (m120), stable, beta, dev, canary, or the path of a program.
# chrome:
#   versions: [stable]

# Any further lists; the command sees AXIS_NODE.
# axes:
#   node: [20, 22]

# exclude:
#   - {code: main, node: 20}
# timeout: 5m
# env:
#   CI: 1
";

#[cfg(test)]
mod tests {
    use retake_types::Stream;
    use retake_types::request::MetricSource;

    use super::*;

    fn read(name: &str, text: &str) -> Result<Config, Vec<String>> {
        Config::read(Path::new(name), text).map_err(|error| match error {
            ConfigError::Invalid(problems) => problems,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn a_chrome_ranger_file_works_as_it_is() {
        let text = "command: npx playwright test\nsetup: npm ci\niterations: 5\nwarmup: 1\nworkers: 2\nchrome:\n  versions:\n    - 120.0.6099.109\n    - \"121.0.6167.85\"\n    - 120.0.6099.109\n  cache_dir: ./cache\n  colour: red\ncode:\n  repo: ../app\n  refs: [main, feature/a, 1.10, 2024]\nunknown: 1\n";
        let config = read("dir/chrome-ranger.yaml", text).unwrap();
        assert_eq!((config.iterations, config.warmup, config.workers), (5, 1, 2));
        let chrome = config.chrome.as_ref().unwrap();
        assert_eq!(chrome.versions, ["120.0.6099.109", "121.0.6167.85"]);
        assert_eq!(chrome.cache_dir.as_deref(), Some(Path::new("dir/./cache")));
        let code = config.code.as_ref().unwrap();
        assert_eq!(code.refs, ["main", "feature/a", "1.10", "2024"]);
        assert_eq!(code.repo, Path::new("dir/../app"));
        assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
        assert_eq!(
            config.warnings[1],
            "dir/chrome-ranger.yaml:12:3: there is no key chrome.colour"
        );
    }

    #[test]
    fn everything_a_matrix_can_say() {
        let text = "command: ./bench\niterations: 3\naxes:\n  node: [18, 20.0]\n  gc: [true, 'off']\ncode: {refs: [a, b]}\nexclude: [{code: a, node: 18}]\ninclude:\n  - {code: c, node: 22, gc: x}\ntimeout: 30s\norder: blocked\nmetrics:\n  - wall\n  - {name: fps, unit: Hz, better: higher}\nenv: {A: 1, B: 'x y'}\n";
        let config = read("matrix.yml", text).unwrap();
        let axes = config.all_axes();
        let names: Vec<_> = axes.iter().map(|axis| axis.name.as_str()).collect();
        assert_eq!(names, ["code", "node", "gc"]);
        assert_eq!(axes[1].values, ["18", "20.0"]);
        assert_eq!(axes[2].values, ["true", "off"]);
        assert_eq!(config.timeout, Some(Duration::from_secs(30)));
        assert_eq!(config.order, Order::Blocked);
        assert_eq!((config.better("fps"), config.better("wall")), (Better::Higher, Better::Lower));
        assert_eq!(config.env["A"], "1");
        assert_eq!(config.include[0]["gc"], "x");
        assert_eq!(config.code.unwrap().repo, Path::new("."));
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn all_errors_come_at_once_with_their_places() {
        let text = "comand: x\niterations: 0\nwarmup: -1\nworkers: two\nchrome:\n  versions: [120, m121, 1.2]\n  index_url: ftp://x\ncode:\n  refs: []\naxes:\n  chrome: [a]\n  9x: [b]\n  ok: []\n  up: [1]\n  UP: [2]\nexclude: [{colour: red}, {up: 3}]\ninclude: [{up: 1}]\ntimeout: 0\norder: random\nmetrics: [{unit: ms}]\nenv: {\"A B\": 1}\n";
        let problems = read("m.yml", text).unwrap_err();
        let expected = [
            "m.yml:1:1: there is no key comand; did you mean command?",
            "m.yml: command is missing",
            "m.yml:2:13: iterations: takes a whole number from 1",
            "m.yml:3:9: warmup: takes a whole number from 0",
            "m.yml:4:10: workers: takes a whole number from 1",
            "m.yml:6:14: chrome.versions: 120 is a major version only; write m120",
            "m.yml:6:25: chrome.versions: \"1.2\" is not a version",
            "m.yml:7:14: chrome.index_url: takes an address that begins with https:// or http://",
            "m.yml:9:9: code.refs: takes a list that is not empty",
            "m.yml:11:3: axes.chrome: chrome has a section of its own",
            "m.yml:12:3: axes.9x: is not a name for an axis",
            "m.yml:13:7: axes.ok: takes a list that is not empty",
            "m.yml:15:3: axes.UP: sets AXIS_UP as axes.up does",
            "m.yml:16:11: exclude: there is no axis colour",
            "m.yml:16:27: exclude: up has no value 3",
            "m.yml:17:11: include: names no value for chrome, code, ok, UP",
            "m.yml:18:10: timeout: ",
            "m.yml:19:8: order: takes interleaved or blocked, not random",
            "m.yml:20:11: metrics: ",
            "m.yml:21:7: env: \"A B\" is not a valid variable name",
        ];
        for expected in expected {
            assert!(problems.iter().any(|p| p.starts_with(expected)), "{expected}\n{problems:#?}");
        }
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    }

    #[test]
    fn several_commands_are_an_axis_and_say_how_they_are_run() {
        let text = "commands: ['sort-a {n}', {name: b, command: 'sort-b {n}'}]\niterations: 2\naxes: {n: [1, 2]}\nshell: none\nignore_failure: [1, 3]\n";
        let config = read("m.yml", text).unwrap();
        let axes = config.all_axes();
        assert_eq!(axes[1].values, ["sort-a {n}", "b"]);
        assert_eq!((axes[0].name.as_str(), axes[1].name.as_str()), ("n", "command"));
        assert_eq!(config.command.several()[1].text, "sort-b {n}");
        assert_eq!(config.shell, ShellMode::Never);
        assert_eq!(config.ignore_failure, IgnoreFailure::Codes(vec![1, 3]));
        let problems = read("m.yml", "command: a\ncommands: [a, a, {name: x}]\niterations: 1\nshell: zsh\nignore_failure: [x]\naxes: {command: [1]}\n").unwrap_err();
        for expected in [
            "m.yml:2:15: commands: a is listed twice",
            "m.yml:2:18: commands: names no command",
            "m.yml:4:8: shell: takes auto, none or default, not zsh",
            "m.yml:5:17: ignore_failure: takes",
            "m.yml: has command and commands",
            "m.yml: axes.command: ",
        ] {
            assert!(problems.iter().any(|p| p.starts_with(expected)), "{expected}\n{problems:#?}");
        }
        assert_eq!(problems.len(), 6, "{problems:#?}");
    }

    #[test]
    fn metrics_say_where_their_numbers_are() {
        let head = "command: x\niterations: 1\nmetrics:\n";
        let text = "  - {name: a, pattern: 'a=(.*)'}\n  - {name: b, pattern: 'b=(.*)', from: stderr, unit: ms}\n  - {name: c, file: o.json, pointer: /x/0}\n  - {name: d, file: log, pattern: d, better: higher}\n  - e\n";
        let config = read("m.yml", &format!("{head}{text}")).unwrap();
        let wanted: Vec<MetricSource> = config.metrics.iter().map(|m| m.source.clone()).collect();
        let text = |text: &str| text.to_owned();
        let expected = [
            MetricSource::Output { stream: None, pattern: text("a=(.*)") },
            MetricSource::Output { stream: Some(Stream::Stderr), pattern: text("b=(.*)") },
            MetricSource::FilePointer { path: text("o.json"), pointer: text("/x/0") },
            MetricSource::FilePattern { path: text("log"), pattern: text("d") },
            MetricSource::Reported,
        ];
        assert_eq!(wanted, expected);
        for (entry, why) in [
            ("{name: a, pattern: 'a('}", "pattern: unclosed group"),
            ("{name: a, from: file, pattern: a}", "from takes stdout or stderr"),
            ("{name: a, from: stdout}", "from needs a pattern"),
            ("{name: a, file: f}", "file needs a pattern or a pointer"),
            ("{name: a, pointer: /a}", "pointer needs a file"),
            ("{name: a, file: f, pointer: a}", "pointer takes a place"),
            ("{name: a, file: f, pointer: /a, pattern: a}", "takes a pattern or a pointer"),
            ("{name: a, file: f, from: stdout, pattern: a}", "takes from or file"),
            ("{name: wall, pattern: a}", "wall is measured by retake"),
        ] {
            let problems = read("m.yml", &format!("{head}  - {entry}\n")).unwrap_err();
            assert!(problems.len() == 1 && problems[0].contains(why), "{entry}: {problems:?}");
        }
    }

    #[test]
    fn required_keys_and_broken_yaml() {
        assert_eq!(
            read("m.yml", "").unwrap_err(),
            ["m.yml: command is missing", "m.yml: iterations is missing"]
        );
        let problems = read("m.yml", "command: [\n").unwrap_err();
        assert!(problems[0].starts_with("m.yml:2:"), "{problems:?}");
        let problems = read("m.yml", "command: ''\niterations: 1\n").unwrap_err();
        assert_eq!(problems, ["m.yml:1:10: command: is empty"]);
        let problems = read("m.yml", "- 1\n").unwrap_err();
        assert!(problems[0].contains("takes keys and values"), "{problems:?}");
    }

    #[test]
    fn without_axes_it_is_a_matrix_of_one_cell() {
        let config = read("m.yml", "command: 'true'\niterations: 1\n").unwrap();
        assert!(config.all_axes().is_empty());
    }

    #[test]
    fn the_template_is_valid_with_and_without_its_comments() {
        read("matrix.yml", TEMPLATE).unwrap();
        let all: String = TEMPLATE
            .lines()
            .filter(|line| {
                !line.starts_with('#')
                    || line.contains(": ")
                    || line.ends_with(':')
                    || line.contains("- {")
            })
            .filter(|line| !line.contains("Browsers") && !line.contains("See `"))
            .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
            .collect();
        let config = read("matrix.yml", &all).unwrap_or_else(|p| panic!("{p:?}\n{all}"));
        assert!(config.chrome.is_some() && config.axes.len() == 1 && config.timeout.is_some());
    }
}
