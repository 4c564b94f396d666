//! A run's request as a value that can be written down here and carried out there.
//!
//! Secrets are in it by name only: the machine that runs it takes their values from its own
//! environment, or refuses. Bytes that are not text are kept exactly.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_engine::{Command, Detach, Launch, Stdin};
use retake_store::redact::{Redactor, is_secret_name};
use retake_types::{Intent, Limits, RefusalReason};
use serde::{Deserialize, Serialize};

use retake_runner::config::Config;
use retake_runner::prepare::Capture;
use retake_runner::prepare::Job;
use retake_runner::prepare::lossy;

/// Raised when an older retake could misread an order.
const VERSION: u32 = 1;

/// Text, or bytes that are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Exact {
    Text(String),
    Bytes { base64: String },
}

impl Exact {
    fn of(text: &OsStr) -> Self {
        match text.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes { base64: BASE64_STANDARD.encode(text.as_bytes()) },
        }
    }

    fn read(&self) -> Result<OsString, String> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Bytes { base64 } => {
                let bytes = BASE64_STANDARD.decode(base64).map_err(|error| error.to_string())?;
                Ok(OsString::from_vec(bytes))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MayStay {
    Nothing,
    Named(Vec<String>),
    Everything,
}

/// Everything that a machine needs to carry out one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    version: u32,
    /// As it stands in the record, without secrets.
    pub intent: Intent,
    arguments: Vec<Exact>,
    cwd: Exact,
    environment: Vec<(Exact, Exact)>,
    /// Variables whose values the machine itself must have.
    secrets: Vec<String>,
    timeout_ms: Option<u64>,
    grace_ms: u64,
    limits: Limits,
    nice: Option<i32>,
    stdin: Option<Exact>,
    pty: bool,
    may_stay: MayStay,
    redact: bool,
    /// Further secrets, as NAME=REGEX.
    patterns: Vec<String>,
    redactions: u64,
    capture: String,
    inline_bytes: u64,
    capture_bytes: u64,
    /// What the run measures is looked for, and it gets a directory for its own use.
    pub measured: Option<Measured>,
    /// The run is told how many processors the scheduler gave it, in [`PROCESSORS`].
    #[serde(default)]
    pub processors: bool,
}

/// Tells a run that may use all of them how many there are.
pub const PROCESSORS: &str = "RETAKE_PROCESSORS";

/// What is known beforehand of a run that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// How many runs of its kind were planned with it.
    pub planned: Option<u64>,
}

/// The variable that points at the record, which is not where the run will be.
const STORE_VARIABLE: &str = "RETAKE_STORE";

impl Order {
    /// The order for a job, or every reason why it cannot be carried out elsewhere.
    pub fn of(job: &Job, config: &Config) -> Result<Self, Vec<String>> {
        let request = job.command.request();
        let mut problems = Vec::new();
        let leaks = |text: &OsStr| job.redactor.redact_bytes(text.as_bytes()).1 > 0;
        if request.arguments.iter().any(|argument| leaks(argument)) {
            problems.push(
                "an argument contains a secret, which would be written to the shared directory; \
                 let the command read it from a variable"
                    .to_owned(),
            );
        }
        if request.stdin == Stdin::Inherit {
            problems.push(
                "--stdin inherit: a run on another machine cannot read what is typed here; give a \
                 file"
                    .to_owned(),
            );
        }
        let mut secrets = Vec::new();
        let mut environment = Vec::new();
        for (name, value) in &request.environment {
            if name == STORE_VARIABLE {
                continue;
            }
            if is_secret(job, config, name, value) {
                secrets.push(lossy(name));
            } else {
                environment.push((Exact::of(name), Exact::of(value)));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            version: VERSION,
            intent: job.intent.clone(),
            arguments: request.arguments.iter().map(|argument| Exact::of(argument)).collect(),
            cwd: Exact::of(request.cwd.as_os_str()),
            environment,
            secrets,
            timeout_ms: request.timeout.map(millis),
            grace_ms: millis(request.grace),
            limits: request.limits,
            nice: request.nice,
            stdin: match &request.stdin {
                Stdin::File(file) => Some(Exact::of(file.as_os_str())),
                // A descriptor of ours is no use on another machine; nothing asks for one there.
                Stdin::Null | Stdin::Inherit | Stdin::Given(_) => None,
            },
            pty: request.pty,
            may_stay: match &request.detach {
                Detach::None => MayStay::Nothing,
                Detach::Named(names) => MayStay::Named(names.clone()),
                Detach::All => MayStay::Everything,
            },
            redact: !job.redactor.is_off(),
            patterns: config.words("redaction.patterns").to_vec(),
            redactions: job.redactions,
            capture: job.capture.name().to_owned(),
            inline_bytes: job.inline_bytes,
            capture_bytes: job.capture_bytes,
            measured: None,
            processors: false,
        })
    }

    /// How long the run may take with everything around it; `None` for one without a timeout.
    pub fn longest(&self) -> Option<Duration> {
        let timeout = Duration::from_millis(self.timeout_ms?);
        Some(timeout + Duration::from_millis(self.grace_ms))
    }

    /// The job as this machine can run it; `own` gives the value of a variable here, `set` are
    /// variables that only this machine can know.
    pub fn job(
        &self,
        own: impl Fn(&str) -> Option<OsString>,
        set: &[(&str, OsString)],
    ) -> Result<Job, Vec<RefusalReason>> {
        if self.version != VERSION {
            let why =
                format!("the order is of version {}, this retake reads {VERSION}", self.version);
            return Err(vec![RefusalReason::Other(why)]);
        }
        let mut problems = Vec::new();
        let mut read = |exact: &Exact| {
            exact.read().unwrap_or_else(|why| {
                problems.push(RefusalReason::Other(format!("the order is damaged: {why}")));
                OsString::new()
            })
        };
        let arguments = self.arguments.iter().map(&mut read).collect();
        let cwd = read(&self.cwd).into();
        let mut environment: Vec<(OsString, OsString)> =
            self.environment.iter().map(|(name, value)| (read(name), read(value))).collect();
        environment.retain(|(name, _)| set.iter().all(|(known, _)| name != known));
        environment.extend(set.iter().map(|(name, value)| ((*name).into(), value.clone())));
        let stdin = self.stdin.as_ref().map_or(Stdin::Null, |file| Stdin::File(read(file).into()));
        let mut builder = Redactor::builder();
        for name in &self.secrets {
            match own(name) {
                Some(value) => {
                    builder.secret(name.as_str(), value.as_bytes());
                    environment.push((name.into(), value));
                }
                None => problems.push(RefusalReason::Other(format!(
                    "{name} is a secret, so its value is not sent along, and this machine has none; \
                     set it in the job's environment there, or start retake without it: env -u {name}"
                ))),
            }
        }
        for pattern in &self.patterns {
            if let Some((name, regex)) = pattern.split_once('=') {
                builder.pattern(name, regex);
            }
        }
        let redactor = if self.redact {
            builder.build().unwrap_or_else(|error| {
                problems.push(RefusalReason::Other(error.to_string()));
                Redactor::off()
            })
        } else {
            Redactor::off()
        };
        let request = Launch {
            arguments,
            cwd,
            environment,
            timeout: self.timeout_ms.map(Duration::from_millis),
            grace: Duration::from_millis(self.grace_ms),
            limits: self.limits,
            nice: self.nice,
            stdin,
            pty: self.pty,
            detach: match &self.may_stay {
                MayStay::Nothing => Detach::None,
                MayStay::Named(names) => Detach::Named(names.clone()),
                MayStay::Everything => Detach::All,
            },
        };
        let command = Command::new(request).map_err(|more| problems.extend(more)).ok();
        let Some(command) = command.filter(|_| problems.is_empty()) else { return Err(problems) };
        Ok(Job {
            intent: self.intent.clone(),
            command,
            redactor,
            redactions: self.redactions,
            capture: Capture::named(&self.capture).unwrap_or_default(),
            pass: false,
            excerpt: false,
            inline_bytes: self.inline_bytes,
            capture_bytes: self.capture_bytes,
        })
    }
}

/// The scheduler's own limit, in minutes: never before ours.
pub(super) fn backstop(orders: &[Order], pack: usize) -> Option<u64> {
    let mut longest = Duration::ZERO;
    for part in orders.chunks(pack) {
        let part: Option<Duration> = part.iter().map(Order::longest).sum();
        longest = longest.max(part?);
    }
    Some(longest.as_secs() / 60 + 2)
}

/// Whether a variable's value must not be written down. What may be recorded with `--no-redact` may
/// still not lie about in a directory that others may see.
fn is_secret(job: &Job, config: &Config, name: &OsStr, value: &OsStr) -> bool {
    let name = lossy(name);
    let listed = |key: &str| config.words(key).contains(&name);
    if job.intent.terms.secrets.contains(&name) || listed("redaction.secrets") {
        return true;
    }
    let looks = is_secret_name(&name) && !listed("redaction.allow");
    looks || job.redactor.redact_bytes(value.as_bytes()).1 > 0
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use retake_types::Kind;

    use super::*;
    use retake_runner::prepare::Spec;
    use retake_runner::request::Problems;

    fn order(
        change: impl FnOnce(&mut Spec, &mut Vec<(OsString, OsString)>),
    ) -> Result<Order, Vec<String>> {
        let config = Config::load(None).unwrap();
        let mut spec = Spec::new(Kind::Exec, "x".to_owned(), PathBuf::from("/"));
        spec.arguments = vec!["/bin/echo".into(), OsString::from_vec(vec![b'a', 0xff])];
        let mut environment = vec![("PLAIN".into(), "value".into())];
        change(&mut spec, &mut environment);
        let Ok(job) = spec.job(environment, &config, Problems::default()) else { panic!("a job") };
        Order::of(&job, &config)
    }

    #[test]
    fn an_order_is_read_back_to_the_byte() {
        let order = order(|spec, _| spec.timeout = Some(Duration::from_millis(1500))).unwrap();
        let text = serde_json::to_string(&order).unwrap();
        let back: Order = serde_json::from_str(&text).unwrap();
        assert_eq!(back, order);
        let Ok(job) = back.job(|_| None, &[]) else { panic!("a job") };
        let request = job.command.launch();
        assert_eq!(request.arguments[1].as_bytes(), [b'a', 0xff]);
        assert_eq!(request.environment, [("PLAIN".into(), "value".into())]);
        assert_eq!(request.timeout, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn a_secret_goes_by_name_and_is_taken_from_the_machine_or_missed() {
        let order = order(|_, environment| {
            environment.push(("MY_TOKEN".into(), "hunter2hunter2".into()));
        })
        .unwrap();
        let text = serde_json::to_string(&order).unwrap();
        assert!(text.contains("MY_TOKEN") && !text.contains("hunter2"), "{text}");
        let Err(problems) = order.job(|_| None, &[]) else { panic!("refused") };
        assert!(problems[0].to_string().contains("MY_TOKEN is a secret"), "{}", problems[0]);
        let Ok(job) = order.job(|_| Some("another-value".into()), &[]) else { panic!("a job") };
        assert!(
            job.command.launch().environment.contains(&("MY_TOKEN".into(), "another-value".into()))
        );
        assert_eq!(job.redactor.redact_str("x another-value").1, 1);
    }

    #[test]
    fn a_secret_among_the_arguments_is_refused() {
        let problems = order(|spec, environment| {
            environment.push(("MY_TOKEN".into(), "hunter2hunter2".into()));
            spec.arguments.push("--token=hunter2hunter2".into());
        })
        .unwrap_err();
        assert!(problems[0].contains("an argument contains a secret"), "{problems:?}");
    }

    #[test]
    fn a_directory_that_is_missing_there_is_found_before_anything_runs() {
        let mut order = order(|_, _| {}).unwrap();
        order.cwd = Exact::Text("/nowhere/at/all".to_owned());
        let Err(problems) = order.job(|_| None, &[]) else { panic!("refused") };
        assert!(problems.iter().all(RefusalReason::is_directory));
    }
}
