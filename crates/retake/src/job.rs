//! One run that is asked for, and what becomes of the asking: a job that is ready to start, with
//! its intent described without secrets, or every reason why it is refused.
//!
//! `exec` fills a [`Spec`] from its options, loops from their plans.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use retake_engine::{Command, Detach, EnvironmentRules, Launch, PARENT_VARIABLE, Stdin, locate};
use retake_store::redact::{Redactor, is_secret_name};
use retake_types::{
    CorrelationIds, EnvMode, EnvPolicy, Intent, Kind, Limits, LoopId, RefusalReason, RunId, Stream,
    Terms,
};

use crate::config::Config;
use crate::request::Problems;
use crate::{fingerprint, place};

/// Which streams are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Capture {
    #[default]
    All,
    Stdout,
    Stderr,
    None,
}

impl Capture {
    pub(crate) const WORDS: [(&str, Self); 4] = [
        ("all", Self::All),
        ("stdout", Self::Stdout),
        ("stderr", Self::Stderr),
        ("none", Self::None),
    ];

    pub(crate) fn keeps(self, stream: Stream) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Stdout => stream == Stream::Stdout,
            Self::Stderr => stream == Stream::Stderr,
        }
    }

    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(name, _)| *name == word).map(|(_, capture)| *capture)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::WORDS.iter().find(|(_, capture)| *capture == self).map_or("all", |(name, _)| name)
    }

    fn word(self) -> Option<String> {
        let word = Self::WORDS.iter().find(|(_, capture)| *capture == self);
        word.filter(|_| self != Self::All).map(|(word, _)| (*word).to_owned())
    }
}

/// A run that is ready to start.
pub(crate) struct Job {
    pub(crate) intent: Intent,
    pub(crate) command: Command,
    pub(crate) redactor: Redactor,
    /// Replacements already made in the intent.
    pub(crate) redactions: u64,
    pub(crate) capture: Capture,
    /// Whether output passes through to our own stdout and stderr.
    pub(crate) pass: bool,
    /// How much of each stream the result carries.
    pub(crate) inline_bytes: u64,
    /// The result carries excerpts by design: more output than that is no error.
    pub(crate) excerpt: bool,
    /// How much of each stream is kept at most.
    pub(crate) capture_bytes: u64,
}

/// What is asked for.
pub(crate) struct Spec {
    pub(crate) id: RunId,
    pub(crate) kind: Kind,
    pub(crate) loop_id: LoopId,
    pub(crate) iteration: u64,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) correlation_ids: CorrelationIds,

    /// The command as one line, for people.
    pub(crate) shown: String,
    pub(crate) arguments: Vec<OsString>,
    /// Whether the arguments are those of a shell that reads the line.
    pub(crate) shell: bool,

    pub(crate) cwd: PathBuf,
    pub(crate) mode: EnvMode,
    pub(crate) set: Vec<(OsString, OsString)>,
    pub(crate) unset: Vec<OsString>,
    pub(crate) stdin: Stdin,
    pub(crate) pty: bool,
    pub(crate) detach: bool,

    pub(crate) timeout: Option<Duration>,
    /// `None` is the configured one.
    pub(crate) grace: Option<Duration>,
    pub(crate) limits: Limits,
    pub(crate) nice: Option<i32>,

    pub(crate) redact: bool,
    /// Variables whose values are secrets whatever their names look like.
    pub(crate) secrets: Vec<String>,
    pub(crate) capture: Capture,
    pub(crate) pass: bool,
    pub(crate) inline_bytes: u64,
    pub(crate) excerpt: bool,
}

/// Whether two names lead to the same directory; a name through links may stay as it is.
fn same_directory(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
    one == other || id(one).is_ok_and(|one| id(other).is_ok_and(|other| other == one))
}

impl Spec {
    /// A run of its own with nothing special about it; what to run is still missing.
    pub(crate) fn new(kind: Kind, shown: String, cwd: PathBuf) -> Self {
        Self {
            id: RunId::new(),
            kind,
            loop_id: LoopId::new(),
            iteration: 0,
            labels: BTreeMap::new(),
            correlation_ids: CorrelationIds::default(),
            shown,
            arguments: Vec::new(),
            shell: false,
            cwd,
            mode: EnvMode::default(),
            set: Vec::new(),
            unset: Vec::new(),
            stdin: Stdin::Null,
            pty: false,
            detach: false,
            timeout: None,
            grace: None,
            limits: Limits::default(),
            nice: None,
            redact: true,
            secrets: Vec::new(),
            capture: Capture::default(),
            pass: false,
            inline_bytes: 0,
            excerpt: false,
        }
    }

    /// What the child will find in its environment.
    pub(crate) fn environment(&self, config: &Config, store: &Path) -> Vec<(OsString, OsString)> {
        let mut environment = EnvironmentRules {
            mode: self.mode,
            set: &self.set,
            unset: &self.unset,
            allow: config.words("execution.environment.allow"),
            secret: is_secret_name,
        }
        .apply(std::env::vars_os());
        // Some programs believe it more than the system, and our caller may stand elsewhere.
        let place = environment.iter_mut().find(|(name, _)| name == "PWD").map(|(_, value)| value);
        if let Some(place) = place
            && !self.set.iter().any(|(name, _)| name == "PWD")
            && !same_directory(Path::new(place), &self.cwd)
        {
            *place = self.cwd.clone().into();
        }
        if self.mode != EnvMode::Replace {
            environment.retain(|(name, _)| name != PARENT_VARIABLE && name != "RETAKE_STORE");
            environment.push((PARENT_VARIABLE.into(), self.id.to_string().into()));
            environment.push(("RETAKE_STORE".into(), store.into()));
        }
        environment
    }

    /// The job of a loop's own spec, or why it is none.
    pub(crate) fn ready(self, config: &Config, store: &Path) -> Result<Job, String> {
        let environment = self.environment(config, store);
        self.job(environment, config, Problems::default())
            .map_err(|(_, problems)| RefusalReason::listed(&problems))
    }

    /// The job, or the intent that it would have had and everything that is wrong with it.
    pub(crate) fn job(
        self,
        environment: Vec<(OsString, OsString)>,
        config: &Config,
        mut problems: Problems,
    ) -> Result<Job, (Box<Intent>, Vec<RefusalReason>)> {
        let redactor = self.redactor(config, &environment, &mut problems);
        let program = self.arguments.first().filter(|program| !program.is_empty());
        let file = program.and_then(|program| locate(program, &environment, &self.cwd).ok());
        let (intent, redactions) = self.intent(&environment, file.as_deref(), &redactor);
        let missing = self.arguments.is_empty();
        let request = Launch {
            arguments: self.arguments,
            cwd: self.cwd,
            environment,
            timeout: self.timeout,
            grace: self
                .grace
                .unwrap_or_else(|| Duration::from_secs(config.number("execution.grace_seconds"))),
            limits: self.limits,
            nice: self.nice,
            stdin: self.stdin,
            pty: self.pty,
            detach: match (self.detach, config.words("execution.detach_ok")) {
                (true, _) => Detach::All,
                (false, []) => Detach::None,
                (false, names) => Detach::Named(names.to_vec()),
            },
        };
        match Command::new(request).map(|command| command.found(file)) {
            Ok(command) if problems.0.is_empty() => Ok(Job {
                intent,
                command,
                redactor,
                redactions,
                capture: self.capture,
                pass: self.pass,
                inline_bytes: self.inline_bytes,
                excerpt: self.excerpt,
                capture_bytes: config.number("execution.max_capture_mb") << 20,
            }),
            Ok(_) => Err((Box::new(intent), problems.0)),
            Err(more) => {
                // Why there is no command was already explained, and better, while it was read.
                problems.0.extend(
                    more.into_iter().filter(|p| !missing || *p != RefusalReason::EmptyCommand),
                );
                Err((Box::new(intent), problems.0))
            }
        }
    }

    /// Knows the values that must not be written down: those of variables that look secret or are
    /// named so, as the child gets them.
    pub(crate) fn redactor(
        &self,
        config: &Config,
        environment: &[(OsString, OsString)],
        problems: &mut Problems,
    ) -> Redactor {
        if !self.redact {
            return Redactor::off();
        }
        let named = |name: &str| {
            self.secrets
                .iter()
                .chain(config.words("redaction.secrets"))
                .any(|secret| secret == name)
        };
        let harmless =
            |name: &str| config.words("redaction.allow").iter().any(|allowed| allowed == name);
        let mut secrets: Vec<(String, OsString)> = Vec::new();
        for (name, value) in environment {
            if let Some(name) = name.to_str()
                && (named(name) || is_secret_name(name) && !harmless(name))
            {
                secrets.push((name.to_owned(), value.clone()));
            }
        }
        for name in &self.secrets {
            // A secret that the child does not get may still be printed by it.
            if let Some(value) = std::env::var_os(name) {
                secrets.push((name.clone(), value));
            } else if !environment.iter().any(|(n, _)| n == name.as_str()) {
                problems.note(format!("--secret {name}: there is no such variable"));
            }
        }
        redactor_of(secrets, config.words("redaction.patterns"), problems)
    }

    /// What is written down before the run, without secrets, and how many there were.
    fn intent(
        &self,
        environment: &[(OsString, OsString)],
        file: Option<&Path>,
        redactor: &Redactor,
    ) -> (Intent, u64) {
        let mut count = 0;
        // Its secrets stand in the arguments too, and are counted there.
        let (command, _) = redactor.redact_str(&self.shown);
        let arguments: Vec<_> = self
            .arguments
            .iter()
            .map(|argument| {
                let (clean, found) = redactor.redact_bytes(argument.as_bytes());
                count += found;
                clean.into_owned()
            })
            .collect();
        let exact = arguments.iter().all(|argument| std::str::from_utf8(argument).is_ok());
        let set = self.set.iter().map(|(name, value)| {
            let name = lossy(name);
            let value = lossy(value);
            let (clean, found) = redactor.redact_variable(&name, &value);
            count += found;
            let clean = clean.into_owned();
            (name, clean)
        });
        let policy = EnvPolicy {
            mode: self.mode,
            set: set.collect(),
            unset: self.unset.iter().map(|name| lossy(name)).collect(),
        };
        let labels = self.labels.iter().map(|(key, value)| {
            let (clean, found) = redactor.redact_str(value);
            count += found;
            (key.clone(), clean.into_owned())
        });
        let intent = Intent {
            id: self.id,
            kind: self.kind,
            loop_id: self.loop_id,
            iteration: self.iteration,
            labels: labels.collect(),
            arguments_base64: (!exact)
                .then(|| arguments.iter().map(|a| BASE64_STANDARD.encode(a)).collect()),
            arguments: arguments.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect(),
            shell: self.shell,
            environment: policy,
            timeout_ms: self.timeout.map(|timeout| millis(timeout).max(1)),
            limits: self.limits,
            correlation_ids: self.correlation_ids.clone(),
            redacted: self.redact,
            terms: self.terms(environment, file),
            ..empty_intent(command.into_owned(), &self.cwd)
        };
        (intent, count)
    }

    /// What `again` must know to ask for the same.
    fn terms(&self, environment: &[(OsString, OsString)], file: Option<&Path>) -> Terms {
        Terms {
            program: file.and_then(|file| fingerprint::program(file, &self.cwd)),
            variables: Some(fingerprint::variables(environment, &self.secrets)),
            stdin: match &self.stdin {
                Stdin::Null => None,
                Stdin::Inherit => Some("inherit".to_owned()),
                Stdin::File(file) => Some(lossy(file.as_os_str())),
                // What was typed into it is not known afterwards.
                Stdin::Given(_) => None,
            },
            pty: self.pty,
            nice: self.nice,
            grace_ms: self.grace.map(millis),
            capture: self.capture.word(),
            detach: self.detach,
            secrets: self.secrets.clone(),
        }
    }
}

/// An intent that says only what was asked and where.
pub(crate) fn empty_intent(command: String, cwd: &Path) -> Intent {
    Intent {
        id: RunId::new(),
        kind: Kind::Exec,
        loop_id: LoopId::new(),
        iteration: 0,
        parent_id: std::env::var(PARENT_VARIABLE).ok().and_then(|id| id.parse().ok()),
        command,
        arguments: Vec::new(),
        arguments_base64: None,
        shell: false,
        working_directory: cwd.to_string_lossy().into_owned(),
        environment: EnvPolicy::default(),
        timeout_ms: None,
        limits: Limits::default(),
        correlation_ids: CorrelationIds::default(),
        labels: BTreeMap::new(),
        start_time: Timestamp::now(),
        host: place::host(),
        user: place::user(),
        version: env!("CARGO_PKG_VERSION").into(),
        redacted: true,
        terms: Terms::default(),
    }
}

/// A redactor and what it was made of.
struct Made {
    secrets: Vec<(String, OsString)>,
    patterns: Vec<String>,
    redactor: Redactor,
}

thread_local! {
    /// The last one: a loop asks for the same thousands of times, and making it is not free.
    static LAST: RefCell<Option<Made>> = const { RefCell::new(None) };
}

fn redactor_of(
    secrets: Vec<(String, OsString)>,
    patterns: &[String],
    problems: &mut Problems,
) -> Redactor {
    let known = LAST.with_borrow(|last| {
        let made = last.as_ref()?;
        (made.secrets == secrets && made.patterns == patterns).then(|| made.redactor.clone())
    });
    if let Some(known) = known {
        return known;
    }
    let before = problems.0.len();
    let mut builder = Redactor::builder();
    for (name, value) in &secrets {
        builder.secret(name.as_str(), value.as_bytes());
    }
    for pattern in patterns {
        match pattern.split_once('=') {
            Some((name, regex)) => {
                builder.pattern(name, regex);
            }
            None => problems.note(format!("redaction.patterns: {pattern:?}: write NAME=REGEX")),
        }
    }
    let redactor = builder.build().unwrap_or_else(|error| {
        problems.note(error.to_string());
        Redactor::off()
    });
    if problems.0.len() == before {
        let (patterns, redactor) = (patterns.to_vec(), redactor.clone());
        LAST.set(Some(Made { secrets, patterns, redactor }));
    }
    redactor
}

pub(crate) fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
