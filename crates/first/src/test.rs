//! `first::test()`: the builder, and what it does in each phase.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::async_support::{MustFinish, caught};
use crate::child::Child;
use crate::env::{CrashInfo, Env};
use crate::invocation::{Caller, Invocation};
use crate::options::Options;
use crate::orchestrator::report;
use crate::orchestrator::{self, Session};
use crate::setup_error::{SetupError, fail_test};
use crate::variables::{ACKS, Phase, TEST_INDEX, Variables};
use retake_crash::glob::Glob;
use retake_crash::model::Model;

/// Starts to describe a crash test. [`run`](Test::run) sets what to crash, [`verify`](Workload::verify) what
/// must be true afterwards, and does the work.
pub fn test() -> Test {
    Test { options: Options::default() }
}

/// A crash test without its closures.
#[derive(Debug)]
#[must_use = "nothing is tested before `.run(…).verify(…)`"]
pub struct Test {
    options: Options,
}

impl Test {
    /// The seed that [`Env::seed`] returns; 0 by default. `FIRST_SEED` overrides it.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }

    /// Tries only the first `n` crash points.
    pub fn max_crashes(mut self, n: usize) -> Self {
        self.options.max_crashes = Some(n);
        self
    }

    /// Runs `n` children at a time; 1 by default. Results and their order stay the same.
    pub fn jobs(mut self, n: usize) -> Self {
        self.options.jobs = n;
        self
    }

    /// Time limit of each child; 60 s by default. A child that takes longer has failed.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options.timeout = limit;
        self
    }

    /// Continues after a failed check, to find all of them. `FIRST_KEEP_GOING` overrides it.
    pub fn keep_going(mut self, yes: bool) -> Self {
        self.options.keep_going = yes;
        self
    }

    /// Counts only crash points whose label matches: `*`, `?` and `[a-z]` as in a shell.
    pub fn label_filter(mut self, pattern: impl Into<String>) -> Self {
        self.options.label_filter = Some(pattern.into());
        self
    }

    /// What a crash may lose; by default [`Model::Kill`]: only the process ends, at each crash
    /// point. Under the other models the power fails after any operation, and what was not synced may be
    /// lost in every way that the file system allows; crash points are then only labels, and
    /// [`CrashInfo::point_id`] is the number of the operation.
    pub fn model(mut self, model: Model) -> Self {
        self.options.model = model;
        self
    }

    /// The full name of the test function, if it cannot be determined: on a thread that the
    /// test started itself.
    pub fn name(mut self, test: impl Into<String>) -> Self {
        self.options.name = Some(test.into());
        self
    }

    /// The workload: what a crash will interrupt. Runs in children only.
    pub fn run<R: FnOnce(&Env)>(self, workload: R) -> Workload<R> {
        Workload { options: self.options, workload }
    }

    /// The workload of an asynchronous test, under any executor that awaits
    /// [`verify_async`](AsyncWorkload::verify_async).
    pub fn run_async<R: AsyncFnOnce(Env)>(self, workload: R) -> AsyncWorkload<R> {
        AsyncWorkload { options: self.options, workload }
    }
}

/// A crash test that still needs its check.
#[derive(Debug)]
#[must_use = "nothing is tested before `.verify(…)`"]
pub struct Workload<R> {
    options: Options,
    workload: R,
}

impl<R: FnOnce(&Env)> Workload<R> {
    /// Tries every crash point: `check` recovers and asserts, and fails by panicking.
    ///
    /// # Panics
    ///
    /// If a check fails, or the workload cannot be tested. The message says where, why, and how to
    /// reproduce it.
    #[track_caller]
    pub fn verify<V: FnOnce(&Env, &CrashInfo)>(self, check: V) -> Verified {
        match Role::find(&self.options, Check::Synchronous) {
            Ok(Role::Orchestrator(found)) => found.orchestrate(&self.options),
            Ok(Role::Execution { child, target, filter }) => {
                child.arm(target, filter);
                let result = catch_unwind(AssertUnwindSafe(|| (self.workload)(&child.env)));
                child.executed(target, result);
            }
            Ok(Role::Verify { child, crash }) => {
                let result = catch_unwind(AssertUnwindSafe(|| check(&child.env, &crash)));
                child.verified(&crash, result);
            }
            Ok(Role::Bystander) => {}
            Err(error) => fail_test(&error),
        }
        Verified { _private: () }
    }
}

/// An asynchronous crash test that still needs its check.
#[derive(Debug)]
#[must_use = "nothing is tested before `.verify_async(…).await`"]
pub struct AsyncWorkload<R> {
    options: Options,
    workload: R,
}

impl<R: AsyncFnOnce(Env)> AsyncWorkload<R> {
    /// Like [`Workload::verify`]; must be awaited. While crash points are tried it blocks its
    /// thread: the work happens in other processes.
    pub fn verify_async<V: AsyncFnOnce(Env, CrashInfo)>(
        self,
        check: V,
    ) -> impl Future<Output = Verified> {
        let awaited = MustFinish { finished: false };
        async move {
            // Moved as a whole: naming a field would leave the rest, and its check, behind.
            let mut awaited = awaited;
            match Role::find(&self.options, Check::Asynchronous) {
                Ok(Role::Orchestrator(found)) => found.orchestrate(&self.options),
                Ok(Role::Execution { child, target, filter }) => {
                    child.arm(target, filter);
                    let result = caught((self.workload)(child.env.clone())).await;
                    child.executed(target, result);
                }
                Ok(Role::Verify { child, crash }) => {
                    let result = caught(check(child.env.clone(), crash.clone())).await;
                    child.verified(&crash, result);
                }
                Ok(Role::Bystander) => {}
                Err(error) => fail_test(&error),
            }
            awaited.finished = true;
            Verified { _private: () }
        }
    }
}

/// A crash test that has passed.
#[derive(Debug)]
pub struct Verified {
    _private: (),
}

impl Verified {
    /// Does nothing: everything has been done. For tests written when this was the last call.
    pub fn execute(self) {}
}

/// The role of this process in this test.
enum Role {
    Orchestrator(Box<OrchestratorSetup>),
    Execution {
        child: Child,
        target: usize,
        filter: Option<Glob>,
    },
    Verify {
        child: Child,
        crash: CrashInfo,
    },
    /// Another FIRST test of this function was selected.
    Bystander,
}

/// How a check is run. An executor has threads and descriptors, which a copy of its
/// process would have to share with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Synchronous,
    Asynchronous,
}

struct OrchestratorSetup {
    invocation: Invocation,
    index: usize,
    seed: u64,
    variables: Variables,
}

impl Role {
    fn find(options: &Options, check: Check) -> Result<Self, SetupError> {
        let filter = options.check()?;
        let variables = Variables::read(|name| std::env::var_os(name))?;
        let name = variables.test_name.as_deref();
        let invocation = Invocation::of(&Caller::find()?, options.name.as_deref(), name)?;
        let index = next_index(&invocation.test);
        let seed = variables.seed.unwrap_or(options.seed);
        // A child, a crash point and a state belong to one FIRST test of the function; otherwise the
        // orchestrator runs all.
        let orchestrator = variables.phase == Phase::Orchestrator;
        let all = orchestrator && variables.only.is_none() && variables.replay.is_none();
        let selected = variables.test_index.or(if all { None } else { Some(1) });
        if let Some(selected) = selected.filter(|selected| *selected != index) {
            if orchestrator {
                report::say(&match variables.test_index {
                    Some(_) => format!("number {index} is left out: {TEST_INDEX}={selected}"),
                    None => format!("number {index} is left out: {TEST_INDEX}={index} selects it"),
                });
            }
            return Ok(Self::Bystander);
        }
        Ok(match variables.phase.clone() {
            Phase::Orchestrator => Self::Orchestrator(Box::new(OrchestratorSetup {
                invocation,
                index,
                seed,
                variables,
            })),
            Phase::Execution { target } => {
                Self::Execution { child: Child::enter(&variables, seed)?, target, filter }
            }
            Phase::Verify { .. } if variables.check_server.is_some() => {
                let may_copy = check == Check::Synchronous;
                let (child, request) = Child::serve_checks(&variables, seed, may_copy)?;
                let acks = promises(Some(&request.acks))?;
                let crash = CrashInfo::new(request.point_id, request.label, seed, acks);
                Self::Verify { child, crash }
            }
            Phase::Verify { point_id, label } => Self::Verify {
                crash: CrashInfo::new(point_id, label, seed, promises(variables.acks.as_deref())?),
                child: Child::enter(&variables, seed)?,
            },
        })
    }
}

impl OrchestratorSetup {
    #[track_caller]
    fn orchestrate(self, options: &Options) {
        let Self { invocation, index, seed, variables } = &self;
        let session = Session { invocation, index: *index, seed: *seed, options, variables };
        if let Err(message) = orchestrator::run(&session) {
            panic!("first: {message}");
        }
    }
}

/// The promises made before the crash, read from a file.
fn promises(acks: Option<&Path>) -> Result<Vec<String>, SetupError> {
    let Some(path) = acks else { return Ok(Vec::new()) };
    let text = std::fs::read(path).map_err(|source| SetupError::System {
        what: format!("{ACKS}={}", path.display()),
        source,
    })?;
    Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
}

/// The number of this FIRST test within its function, from 1, in the order they reach their checks.
fn next_index(test: &str) -> usize {
    static COUNTS: Mutex<Vec<(String, usize)>> = Mutex::new(Vec::new());
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    match counts.iter_mut().find(|(name, _)| name == test) {
        Some((_, count)) => {
            *count += 1;
            *count
        }
        None => {
            counts.push((test.to_owned(), 1));
            1
        }
    }
}
