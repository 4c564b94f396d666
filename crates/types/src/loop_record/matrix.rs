//! The record of a matrix loop: its plan, the answer of a bisection, the labels of its runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::disturbance::{Disturbance, SeenDisturbance};

/// The plan of a matrix loop, as it is recorded when the loop begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatrixLoopPlan {
    pub purpose: MatrixPurpose,
    /// The configuration file, absolute.
    pub config: String,
    /// Locked for as long as the loop runs.
    pub lock: PathBuf,
    pub seed: u64,
    pub order: String,
    pub command: String,
    pub setup: Option<String>,
    pub iterations: u64,
    /// Everything runs again and replaces earlier runs.
    pub replaces: bool,
    pub workers: usize,
    pub axes: BTreeMap<String, Vec<String>>,
    /// Milestones and channels with the version they were first resolved to.
    pub pins: BTreeMap<String, String>,
    /// Refs with their commits.
    pub commits: BTreeMap<String, String>,
    /// The checksums of downloaded browsers, by version.
    pub checksums: BTreeMap<String, String>,
    /// Values of axes that could not be resolved or provided, and why.
    pub unavailable: Vec<String>,
    /// The machine: name and value.
    pub environment: BTreeMap<String, String>,
    /// The shard that it runs, if not the whole matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<PlannedShard>,
}

/// One shard of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedShard {
    /// The hash of the plan of all shards.
    pub plan: String,
    pub number: u64,
    pub of: u64,
}

impl MatrixLoopPlan {
    /// The name of the machine in [`environment`](Self::environment).
    pub const HOST: &str = "host";

    /// The machine that the loop runs on.
    pub fn host(&self) -> Option<&str> {
        self.environment.get(Self::HOST).map(String::as_str)
    }
}

/// The purpose of a matrix loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", from = "RecordedPurpose")]
pub enum MatrixPurpose {
    /// A fixed number of iterations of each cell.
    #[default]
    Run,
    /// Iterations until every comparison is decided at this margin, a fraction of one.
    RunUntilSure { margin: f64 },
    /// A search along an axis.
    Bisect { axis: String },
}

impl MatrixPurpose {
    /// Whether it runs cells instead of searching along an axis.
    pub fn is_run(&self) -> bool {
        matches!(self, Self::Run | Self::RunUntilSure { .. })
    }

    /// The axis that a bisection searches.
    pub fn searched_axis(&self) -> Option<&str> {
        match self {
            Self::Bisect { axis } => Some(axis),
            Self::Run | Self::RunUntilSure { .. } => None,
        }
    }

    /// A purpose as recorded before it had a type: `run`, `run --until-sure 2%`, `bisect code`.
    fn from_text(text: &str) -> Self {
        if let Some(axis) = text.strip_prefix("bisect") {
            return Self::Bisect { axis: axis.trim().to_owned() };
        }
        let percent = text.strip_prefix("run --until-sure ").and_then(|rest| {
            rest.strip_suffix('%')?.parse::<f64>().ok().filter(|percent| percent.is_finite())
        });
        percent.map_or(Self::Run, |percent| Self::RunUntilSure { margin: percent / 100.0 })
    }
}

/// A purpose as any release recorded it.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedPurpose {
    Typed(TypedPurpose),
    Text(String),
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
enum TypedPurpose {
    Run,
    RunUntilSure { margin: f64 },
    Bisect { axis: String },
}

impl From<RecordedPurpose> for MatrixPurpose {
    fn from(recorded: RecordedPurpose) -> Self {
        match recorded {
            RecordedPurpose::Typed(TypedPurpose::Run) => Self::Run,
            RecordedPurpose::Typed(TypedPurpose::RunUntilSure { margin }) => {
                Self::RunUntilSure { margin }
            }
            RecordedPurpose::Typed(TypedPurpose::Bisect { axis }) => Self::Bisect { axis },
            RecordedPurpose::Text(text) => Self::from_text(&text),
        }
    }
}

/// One entry of a matrix loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum MatrixEntry {
    /// What a bisection found.
    Answer { answer: BisectAnswer },
    /// What disturbed the measurement, as far as the machine reports it.
    Disturbed { disturbances: Vec<SeenDisturbance> },
    /// The commits measured so far, for readers that plot a metric over commits without asking git.
    Commits { measured: MeasuredCommits },
}

/// Measured commits of a branch, oldest first, and their cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredCommits {
    /// The branch.
    #[serde(rename = "ref")]
    pub reference: String,
    pub commits: Vec<MeasuredCommit>,
    /// One for each combination of the other axes.
    pub lines: Vec<CommitCells>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredCommit {
    pub sha: String,
    pub subject: String,
    /// Its position among all inspected commits of the branch.
    pub place: usize,
}

/// The cell of each commit, with all other axes equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitCells {
    /// The values of the other axes; `None` if each has only one.
    pub name: Option<String>,
    pub keys: Vec<CellKey>,
}

/// How a point of a bisection was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointVerdict {
    Good,
    Bad,
    Skip,
}

/// A judged point of a bisection, from new or earlier runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JudgedPoint {
    pub point: String,
    pub verdict: PointVerdict,
    pub samples: usize,
}

/// The answer of a bisection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BisectAnswer {
    #[serde(default)]
    pub axis: String,
    /// The values of the other axes that have several, such as `op=insert size=small`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    pub last_good: Option<String>,
    pub first_bad: Option<String>,
    /// Whether the good end comes after the bad one: then `last_good` is the first good point, and
    /// `first_bad` the last bad one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub good_is_later: bool,
    /// Whether every run was trusted: then the answer has no level of certainty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trusted: bool,
    /// The probability that the change is exactly there, given every run.
    pub confidence: f64,
    /// No judged point contradicts a single change.
    pub monotone: bool,
    /// Every judged point, including runs of earlier loops.
    pub steps: Vec<JudgedPoint>,
    /// Points between the two that could not be judged.
    #[serde(default)]
    pub skipped: Vec<String>,
    /// The subject line of the commit that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// How much the machine changed during the search: 1.1 is 10 % more at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<f64>,
    /// What disturbed the search, as far as the machine reports it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<Disturbance>,
    pub sentence: String,
}

impl BisectAnswer {
    /// This answer, searched within the gap that an earlier search over fewer points left: the
    /// confidences multiply.
    #[must_use]
    pub fn after(mut self, earlier: Self) -> Self {
        self.confidence *= earlier.confidence;
        self.monotone &= earlier.monotone;
        self.drift = self.drift.or(earlier.drift);
        let known: Vec<JudgedPoint> = std::mem::take(&mut self.steps);
        let before = earlier.steps.into_iter();
        // A point that both judged is listed once, with the later verdict.
        self.steps =
            before.filter(|step| known.iter().all(|other| other.point != step.point)).collect();
        self.steps.extend(known);
        self.write_sentence();
        self
    }

    /// The first point after the change, in the order of the axis.
    pub fn changed_at(&self) -> Option<&String> {
        if self.good_is_later { self.last_good.as_ref() } else { self.first_bad.as_ref() }
    }

    /// What a point is in this answer.
    pub fn part(&self, point: &str) -> Option<&'static str> {
        let is = |end: &Option<String>| end.as_deref() == Some(point);
        match self.good_is_later {
            false if is(&self.first_bad) => Some("first bad"),
            false if is(&self.last_good) => Some("last good"),
            true if is(&self.first_bad) => Some("last bad"),
            true if is(&self.last_good) => Some("first good"),
            _ => None,
        }
    }

    /// Says in one sentence where the change is, if it was found.
    pub fn write_sentence(&mut self) {
        let (Some(good), Some(bad)) = (&self.last_good, &self.first_bad) else { return };
        let what = if self.axis == "code" { "commit" } else { &self.axis };
        let found = match self.good_is_later {
            false => format!("{good} is the last good and {bad} the first bad {what}"),
            true => format!("{bad} is the last bad and {good} the first good {what}"),
        };
        let sure = match self.trusted {
            false => format!("{:.1} % sure", (self.confidence * 1000.0).floor() / 10.0),
            true => "trusting every run".to_owned(),
        };
        self.sentence = format!("{found} ({sure})");
        if !self.skipped.is_empty() {
            self.sentence += &format!("; {} between them could not be judged", self.skipped.len());
        }
        if !self.monotone {
            self.sentence += "; but it changes more than once, so this is one change of several";
        }
        if let Some(drift) = self.drift {
            self.sentence += &format!(
                "; the machine changed by {:+.1} % meanwhile, which each point was measured against",
                (drift - 1.0) * 100.0
            );
        }
    }
}

/// What a run must match to count for a cell: a hash of command, environment and the resolved
/// values of all axes. A ref counts as its commit and a milestone as its exact version, so that
/// results from before and after a branch moves never mix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellKey([u8; 16]);

impl CellKey {
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellKey({self})")
    }
}

impl Serialize for CellKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CellKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("32 hexadecimal digits expected"))
    }
}

/// The role of a run in its matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellRole {
    /// A measured iteration of a cell.
    Iteration(CellKey),
    /// A run of a cell that is not measured.
    Warmup(CellKey),
    /// The setup of a worktree, with a name for people.
    Setup(String),
    /// A hook around the iterations of a cell.
    Hook(CellHook, CellKey),
}

/// A hook around the iterations of a cell; not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellHook {
    /// Before each iteration.
    Prepare,
    /// After each iteration.
    Conclude,
    /// After the last iteration.
    Cleanup,
}

impl CellHook {
    const ALL: [Self; 3] = [Self::Prepare, Self::Conclude, Self::Cleanup];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Conclude => "conclude",
            Self::Cleanup => "cleanup",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Prepare => "matrix.prepare",
            Self::Conclude => "matrix.conclude",
            Self::Cleanup => "matrix.cleanup",
        }
    }
}

/// Which failures of a command still count as results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IgnoreFailure {
    #[default]
    None,
    /// Every exit code.
    All,
    /// These exit codes.
    Codes(Vec<i32>),
}

impl IgnoreFailure {
    const ALL: &str = "all";

    /// Whether a command that exits with this code produced a result.
    pub fn accepts(&self, exit_code: i32) -> bool {
        match self {
            Self::None => exit_code == 0,
            Self::All => true,
            Self::Codes(codes) => exit_code == 0 || codes.contains(&exit_code),
        }
    }

    /// `all`, or codes such as `1,3`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == Self::ALL {
            return Some(Self::All);
        }
        let code = |part: &str| part.trim().parse().ok().filter(|code| (0..=255).contains(code));
        text.split(',').map(code).collect::<Option<Vec<i32>>>().map(Self::Codes)
    }

    /// In the form that [`parse`](Self::parse) reads; `None` if nothing is ignored.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::All => Some(Self::ALL.to_owned()),
            Self::Codes(codes) => {
                Some(codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Everything that the labels of a run say about its place in a matrix. Runs can be filtered by
/// label, and every release writes them in this form; only this type knows their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellLabels {
    pub role: CellRole,
    /// The value of every axis, as configured.
    pub axes: BTreeMap<String, String>,
    /// The exact version of the browser.
    pub chrome: Option<String>,
    /// The commit.
    pub sha: Option<String>,
    /// The number of iterations was chosen from their results.
    pub adaptive: bool,
    /// The iterations were not interleaved with those of other cells.
    pub blocked: bool,
    /// The block of its loop, if it is not the iteration number: the runs of a block are measured
    /// in turn and can be compared.
    pub block: Option<u64>,
    /// The program that produced the imported results.
    pub imported: Option<String>,
    /// Failures that count as results.
    pub ignore_failure: IgnoreFailure,
}

const KEY: &str = "matrix.key";
const WARMUP: &str = "matrix.warmup";
const SETUP: &str = "matrix.setup";
const AXIS: &str = "matrix.axis.";
const SHA: &str = "matrix.sha";
const CHROME: &str = "matrix.chrome";
const ADAPTIVE: &str = "matrix.adaptive";
const BLOCKED: &str = "matrix.blocked";
const BLOCK: &str = "matrix.block";
const IMPORTED: &str = "matrix.imported";
const IGNORE_FAILURE: &str = "matrix.ignore_failure";

type Labels = BTreeMap<String, String>;

impl CellLabels {
    /// The label that all measured iterations of a cell share.
    pub const CELL: &'static str = KEY;

    pub fn new(role: CellRole) -> Self {
        Self {
            role,
            axes: BTreeMap::new(),
            chrome: None,
            sha: None,
            adaptive: false,
            blocked: false,
            block: None,
            imported: None,
            ignore_failure: IgnoreFailure::None,
        }
    }

    /// `None` for a run that belongs to no matrix.
    pub fn from_labels(labels: &Labels) -> Option<Self> {
        let key = |name: &str| labels.get(name).and_then(|text| CellKey::parse(text));
        let role = key(KEY)
            .map(CellRole::Iteration)
            .or_else(|| key(WARMUP).map(CellRole::Warmup))
            .or_else(|| labels.get(SETUP).cloned().map(CellRole::Setup))
            .or_else(|| {
                CellHook::ALL
                    .into_iter()
                    .find_map(|hook| Some(CellRole::Hook(hook, key(hook.label())?)))
            })?;
        Some(Self {
            role,
            axes: Self::axes(labels)
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            chrome: labels.get(CHROME).cloned(),
            sha: labels.get(SHA).cloned(),
            adaptive: labels.contains_key(ADAPTIVE),
            blocked: labels.contains_key(BLOCKED),
            block: labels.get(BLOCK).and_then(|text| text.parse().ok()),
            imported: labels.get(IMPORTED).cloned(),
            ignore_failure: labels
                .get(IGNORE_FAILURE)
                .and_then(|text| IgnoreFailure::parse(text))
                .unwrap_or_default(),
        })
    }

    /// Adds these labels to a run's.
    pub fn write_to(&self, labels: &mut Labels) {
        let mut put = |name: &str, value: &str| labels.insert(name.to_owned(), value.to_owned());
        match &self.role {
            CellRole::Iteration(key) => put(KEY, &key.to_string()),
            CellRole::Warmup(key) => put(WARMUP, &key.to_string()),
            CellRole::Setup(name) => put(SETUP, name),
            CellRole::Hook(hook, key) => put(hook.label(), &key.to_string()),
        };
        for (name, value) in &self.axes {
            put(&format!("{AXIS}{name}"), value);
        }
        let flag = |set: bool| set.then_some("1");
        let block = self.block.map(|block| block.to_string());
        let ignored = self.ignore_failure.text();
        let rest = [
            (CHROME, self.chrome.as_deref()),
            (SHA, self.sha.as_deref()),
            (ADAPTIVE, flag(self.adaptive)),
            (BLOCKED, flag(self.blocked)),
            (BLOCK, block.as_deref()),
            (IMPORTED, self.imported.as_deref()),
            (IGNORE_FAILURE, ignored.as_deref()),
        ];
        for (name, value) in rest {
            if let Some(value) = value {
                put(name, value);
            }
        }
    }

    /// The key of the cell that a run is an iteration of.
    pub fn iteration_of(&self) -> Option<CellKey> {
        match self.role {
            CellRole::Iteration(key) => Some(key),
            CellRole::Warmup(_) | CellRole::Setup(_) | CellRole::Hook(..) => None,
        }
    }

    /// The axes and values among the labels of any run.
    pub fn axes(labels: &Labels) -> impl Iterator<Item = (&str, &str)> {
        labels.iter().filter_map(|(name, value)| Some((name.strip_prefix(AXIS)?, value.as_str())))
    }

    /// The label that all iterations of a cell share, for a filter.
    pub fn filter(key: CellKey) -> (String, String) {
        (KEY.to_owned(), key.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_of_every_release_are_read() {
        let read = |text: &str| serde_json::from_str::<MatrixPurpose>(text).unwrap();
        assert_eq!(read("\"run\""), MatrixPurpose::Run);
        assert_eq!(read("\"run --until-sure 2%\""), MatrixPurpose::RunUntilSure { margin: 0.02 });
        let bisect = MatrixPurpose::Bisect { axis: "code".to_owned() };
        assert_eq!(read("\"bisect code\""), bisect);
        for purpose in [MatrixPurpose::Run, MatrixPurpose::RunUntilSure { margin: 0.05 }, bisect] {
            assert_eq!(read(&serde_json::to_string(&purpose).unwrap()), purpose);
        }
    }

    #[test]
    fn labels_say_everything_back() {
        let key = CellKey::from_bytes([0xab; 16]);
        let roles = [
            CellRole::Iteration(key),
            CellRole::Warmup(key),
            CellRole::Setup("main".to_owned()),
            CellRole::Hook(CellHook::Prepare, key),
            CellRole::Hook(CellHook::Conclude, key),
            CellRole::Hook(CellHook::Cleanup, key),
        ];
        for role in roles {
            let labels = CellLabels {
                axes: [("code".to_owned(), "main".to_owned())].into(),
                chrome: Some("120.0.6099.109".to_owned()),
                sha: Some("ab".repeat(20)),
                adaptive: true,
                blocked: true,
                block: Some(7),
                imported: Some("chrome-ranger".to_owned()),
                ignore_failure: IgnoreFailure::Codes(vec![1, 3]),
                ..CellLabels::new(role)
            };
            let mut written = Labels::new();
            labels.write_to(&mut written);
            assert_eq!(CellLabels::from_labels(&written), Some(labels));
        }
        assert_eq!(CellLabels::from_labels(&Labels::new()), None);
    }

    #[test]
    fn which_failures_count_as_results() {
        assert!(IgnoreFailure::None.accepts(0) && !IgnoreFailure::None.accepts(1));
        let some = IgnoreFailure::parse("1, 3").unwrap();
        assert_eq!([0, 1, 2, 3].map(|code| some.accepts(code)), [true, true, false, true]);
        assert!(IgnoreFailure::parse("all").unwrap().accepts(99));
        for wrong in ["", "x", "1,", "256", "-1"] {
            assert_eq!(IgnoreFailure::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn labels_keep_the_names_that_old_readers_know() {
        let key = CellKey::from_bytes([1; 16]);
        let mut written = Labels::new();
        let labels = CellLabels { adaptive: true, ..CellLabels::new(CellRole::Iteration(key)) };
        labels.write_to(&mut written);
        let expected = [("matrix.adaptive", "1"), ("matrix.key", &"01".repeat(16))];
        let expected: Labels = expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        assert_eq!(written, expected);
        assert_eq!(CellLabels::filter(key), ("matrix.key".to_owned(), "01".repeat(16)));
    }

    #[test]
    fn an_answer_has_the_shape_that_was_always_written() {
        let text = r#"{"answer":{"axis":"code","lastGood":"a","firstBad":"b","confidence":0.9,
            "monotone":true,"steps":[{"point":"a","verdict":"good","samples":2}],"skipped":[],
            "sentence":"s"},"event":"answer"}"#;
        let MatrixEntry::Answer { answer } = serde_json::from_str(text).unwrap() else { panic!() };
        assert_eq!(answer.steps[0].verdict, PointVerdict::Good);
        let value = serde_json::to_value(MatrixEntry::Answer { answer }).unwrap();
        assert_eq!(value, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }
}
