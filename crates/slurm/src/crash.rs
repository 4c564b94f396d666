//! An exploration whose states are checked on other machines: shares of them are sent, and what is
//! answered is put together as if it had been found out here.
//!
//! What a failure means is found out here, afterwards, as always. A share that has no answer is
//! neither clean nor failing: its states were not checked, and that is said.

use retake_types::text;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_engine::{Keeper, KeeperSession, KeeperSettings, quote};
use retake_crash::model::{CrashState, CrashStates, Tree};
use retake_store::Store;
use retake_types::{Kind, StopReason};

use super::chronicle::Chronicle;
use super::explore::{Exploration, Explored, acks};
use super::gathered::{Gathered, SHARE, answer, share_of};
use super::relapse::Patient;
use super::share::{self, Answer, Share};
use super::station::Station;
use super::untested::Untested;
use retake_runner::config::Config;
use retake_runner::prepare::Spec;
use retake_runner::screen::time_left;
use crate::Error;
use crate::collect::Attached;
use crate::collect::Batch;
use crate::collect::Plan;
use crate::collect::State;
use crate::collect::new_key;
use crate::journal;
use crate::journal::Claim;
use crate::journal::Held;
use crate::order::Order;
use crate::shared::Shared;
use crate::slurm::Target;
use crate::tools::Tools;
use crate::whereabouts::whereabouts;
use retake_runner::signals;

/// How much later than its last check a share may end.
const SLACK: Duration = Duration::from_secs(30);

/// Where shares go, and by whom.
pub struct Elsewhere<'a> {
    keeper: Keeper,
    shared: Shared,
    target: Target,
    config: &'a Config,
    store: PathBuf,
    /// Checks at once in each share; what the scheduler gives without.
    jobs: Option<u16>,
}

impl<'a> Elsewhere<'a> {
    pub fn new(
        shared: Shared,
        target: Target,
        config: &'a Config,
        store: PathBuf,
        jobs: Option<u16>,
    ) -> std::io::Result<Self> {
        let dispositions = signals::original();
        let settings = KeeperSettings {
            session: KeeperSession::Own,
            dispositions,
            owns_children: true,
            own_mounts: false,
        };
        let keeper = Keeper::start(settings)?;
        let mut target = Target { pack: 1, ..target };
        if let Some(jobs) = jobs {
            target.options.insert(0, format!("--cpus-per-task={jobs}"));
        }
        Ok(Self { keeper, shared, target, config, store, jobs })
    }

    /// Has every state checked; `took` is how long one check took here.
    pub fn explore(
        &mut self,
        exploration: &Exploration<'_>,
        chronicle: &mut Chronicle,
        station: &mut Station,
        took: Duration,
    ) -> Result<Explored, Untested> {
        exploration.screen.live("looking for states");
        let begun = Instant::now();
        let Exploration { recording, model, options, .. } = exploration;
        let states =
            CrashStates::new(recording, *model, options.clone()).map_err(Untested::Glob)?;
        let coverage = states.coverage().clone();
        let total = coverage.distinct_states();
        let size = share::size(total, begun.elapsed(), took);
        let log =
            retake_crash::log::write(Vec::new(), recording).map_err(|error| refused(&error))?;
        let topic = topic(exploration, &log);
        let loop_id = chronicle.id;
        let store = chronicle.store().ok_or_else(|| {
            Untested::Refused("what runs elsewhere is collected by the record".to_owned())
        })?;
        let mut gathered = Gathered::default();
        let earlier = self.take_over(exploration, store, &topic, total, &mut gathered)?;
        let done: Vec<Share> = gathered.answers.iter().map(|(share, _)| *share).collect();
        let rest = share::rest(total, &done, size);
        if !rest.is_empty() && !over(exploration) {
            let claim = Claim { topic, loop_id };
            let batch = self.send(exploration, store, claim, log, &rest)?;
            let held = self.follow(exploration, store, batch, total, &mut gathered)?;
            held.end().map_err(|error| refused(&error))?;
        }
        for held in earlier {
            held.end().map_err(|error| refused(&error))?;
        }
        exploration.screen.clear();
        let gathered = gathered.checked()?;
        let (failing, numbers) = rebuilt(exploration, states, &gathered, station)?;
        let verified = gathered.verified();
        Ok(Explored {
            coverage,
            verified,
            failing,
            numbers,
            complete: verified == total,
            lost: gathered.lost.iter().map(|(share, _)| share.states()).sum(),
            notes: gathered.notes(),
        })
    }

    /// What the same question was answered before its asker died. Their entries are kept until
    /// everything is there.
    fn take_over(
        &mut self,
        exploration: &Exploration<'_>,
        store: &mut Store,
        topic: &str,
        total: u64,
        gathered: &mut Gathered,
    ) -> Result<Vec<Held>, Untested> {
        let mut entries = Vec::new();
        for held in journal::orphans(store.path()).map_err(|error| refused(&error))? {
            let Some(claim) = held.entry.claim.clone().filter(|claim| claim.topic == topic) else {
                continue;
            };
            exploration.screen.notice(
                "this exploration was begun before and its submitter died; what it has is taken over",
            );
            let mut tools = Tools::new(&mut self.keeper);
            let attached = Batch::attach(&mut tools, store, held).map_err(|error| refused(&error));
            let mut came = Gathered::default();
            let held = match attached? {
                Attached::Batch(batch) => {
                    self.follow(exploration, store, *batch, total, &mut came)?
                }
                Attached::Nothing(held) => held,
            };
            let runs = store.runs_of_loop(claim.loop_id).map_err(|error| refused(&error))?;
            for (share, run) in runs.iter().filter_map(|run| Some((share_of(run)?, run))) {
                // What was cut short is asked for again.
                if let Ok(answer) = answer(store, run, total)
                    && answer.complete
                    && gathered.answers.iter().all(|(known, _)| !known.overlaps(share))
                {
                    gathered.answers.push((share, answer));
                }
            }
            store
                .finish_loop(claim.loop_id, &StopReason::Interrupted)
                .map_err(|error| refused(&error))?;
            entries.push(held);
        }
        Ok(entries)
    }

    fn send(
        &mut self,
        exploration: &Exploration<'_>,
        store: &mut Store,
        claim: Claim,
        log: Vec<u8>,
        shares: &[Share],
    ) -> Result<Batch, Untested> {
        let key = new_key();
        let input = self.shared.batch(&key).input();
        let program = self.shared.program().map_err(|error| refused(&error))?;
        let mut orders = Vec::with_capacity(shares.len());
        for (at, share) in shares.iter().enumerate() {
            let words = self.words(exploration, &program, &input, *share);
            let shown = quote(["retake"].into_iter().chain(words[1..].iter().map(String::as_str)));
            let mut spec = Spec::new(Kind::Crash, shown, exploration.check.cwd.clone());
            spec.arguments = words.into_iter().map(Into::into).collect();
            spec.loop_id = claim.loop_id;
            spec.iteration = at as u64 + 1;
            // All of it is kept, and none of it is carried along.
            spec.inline_bytes = u64::MAX;
            spec.labels.insert(SHARE.to_owned(), share.to_string());
            let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            let last = exploration.check.timeout + SLACK;
            spec.timeout = exploration.deadline.map(|deadline| left(deadline) + last);
            let job = spec.ready(self.config, &self.store).map_err(Untested::Refused)?;
            let mut order = Order::of(&job, self.config)
                .map_err(|problems| Untested::Refused(problems.join("; ")))?;
            order.processors = true;
            orders.push(order);
        }
        let plan = Plan {
            key,
            claim: Some(claim),
            input: Some(log),
            ..Plan::of(Kind::Crash, orders, true, self.target.clone())
        };
        let mut tools = Tools::new(&mut self.keeper);
        Batch::prepare(&mut tools, &self.shared, store, plan).map_err(|error| refused(&error))
    }

    /// The command line of a share.
    fn words(
        &self,
        exploration: &Exploration<'_>,
        program: &Path,
        input: &Path,
        share: Share,
    ) -> Vec<String> {
        let check = exploration.check;
        let mut words = vec![
            program.display().to_string(),
            "crash".to_owned(),
            "share".to_owned(),
            format!("--states={share}"),
            input.display().to_string(),
            format!("--model={}", exploration.model.name()),
            format!("--seed={}", exploration.options.seed),
            format!("--verify={}", check.command),
            format!("--verify-timeout={}ms", check.timeout.as_millis()),
        ];
        if exploration.relapses.is_some() {
            words.push("--recovery".to_owned());
        }
        if let Some(deadline) = exploration.deadline {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            let left = i64::try_from(left).unwrap_or(i64::MAX);
            let until = Timestamp::now().as_millisecond().saturating_add(left);
            words.push(format!("--until={until}"));
        }
        words.extend(self.jobs.map(|jobs| format!("--jobs={jobs}")));
        words
    }

    /// Waits until every share of a batch is recorded.
    fn follow(
        &mut self,
        exploration: &Exploration<'_>,
        store: &mut Store,
        mut batch: Batch,
        total: u64,
        gathered: &mut Gathered,
    ) -> Result<Held, Untested> {
        let mut tools = Tools::new(&mut self.keeper);
        let unfollowed = |error: Error| {
            Untested::Refused(format!(
                "the shares go on and cannot be followed: {error}; the same command collects them"
            ))
        };
        let begun = Instant::now();
        let shares = batch.runs().len();
        let (mut came, mut looked) = (0, false);
        while !batch.done() {
            signals::stop_if_asked();
            if signals::received().is_some() {
                batch.cancel().map_err(unfollowed)?;
            } else if over(exploration) && !gathered.unasked {
                // What runs ends by itself and answers; what waits would have nothing to do.
                let runs = |state: &State| matches!(state, State::Running { .. });
                match looked {
                    false => batch.ask_now(),
                    true if !batch.states().any(runs) => {
                        gathered.unasked = true;
                        batch.cancel().map_err(unfollowed)?;
                    }
                    true => {}
                }
                looked = true;
            }
            let new = batch.step(&mut tools, store).map_err(unfollowed)?;
            batch.notices().iter().for_each(|notice| exploration.screen.notice(notice));
            for cell in new {
                came += 1;
                gathered.take(store, batch.runs()[cell], total)?;
            }
            let (verified, failing) = (gathered.verified(), gathered.failing());
            let mut said = format!("{verified}/{total} states, {came}/{shares} shares");
            if failing > 0 {
                said.push_str(&format!(", {failing} failing"));
            }
            if let Some(where_) = whereabouts(batch.states()) {
                said.push_str(&format!(", {where_}"));
            }
            let left = time_left(begun.elapsed(), verified as usize, total as usize);
            if let Some(left) = left {
                said.push_str(&format!(", {} left", text::duration(left)));
            }
            exploration.screen.progress("", verified, total, &said);
            if !batch.done() {
                std::thread::sleep(batch.pause());
            }
        }
        batch.close(&mut tools).map_err(unfollowed)
    }
}

/// The failing states themselves. What failed during recovery is found out once more, here.
fn rebuilt(
    exploration: &Exploration<'_>,
    states: CrashStates<'_>,
    gathered: &Gathered,
    station: &mut Station,
) -> Result<(Vec<CrashState>, Vec<u64>), Untested> {
    let all = |of: fn(&Answer) -> &Vec<u64>| -> Vec<u64> {
        let mut numbers: Vec<u64> =
            gathered.answers.iter().flat_map(|(_, answer)| of(answer)).copied().collect();
        numbers.sort_unstable();
        numbers
    };
    let failing = all(|answer| &answer.failing);
    let relapsing = all(|answer| &answer.relapsing);
    let last = failing.last().max(relapsing.last()).copied().unwrap_or(0);
    let acks = acks(exploration.recording);
    let (mut found, mut numbers) = (Vec::new(), Vec::new());
    for (number, state) in (1..=last).zip(states) {
        if failing.binary_search(&number).is_ok() {
            numbers.push(number);
            // Thousands of trees would be too many, and the key tells all of it.
            found.push(CrashState { tree: Tree::new(&[]), ..state });
        } else if relapsing.binary_search(&number).is_ok()
            && let Some(relapses) = exploration.relapses
        {
            let acks = &acks[..state.acks.min(acks.len())];
            relapses.passes(&state, acks.len());
            relapses
                .examine(0, station, &Patient { number, state: &state, acks })
                .map_err(|error| Untested::unchecked(&error))?;
        }
    }
    if let Some(relapses) = exploration.relapses {
        let during: u64 = gathered.answers.iter().map(|(_, answer)| answer.during_recovery).sum();
        relapses.checked_elsewhere(during);
    }
    Ok((found, numbers))
}

/// Whether no check is to begin any more.
fn over(exploration: &Exploration<'_>) -> bool {
    let spent = |deadline: Instant| Instant::now() >= deadline;
    signals::received().is_some() || exploration.deadline.is_some_and(spent)
}

/// The question, as a hash: whoever asks the same gets the same states and the same checks.
fn topic(exploration: &Exploration<'_>, log: &[u8]) -> String {
    let Exploration { model, options, check, relapses, .. } = exploration;
    let mut hash = blake3::Hasher::new();
    let words = [
        env!("CARGO_PKG_VERSION").as_bytes(),
        log,
        model.name().as_bytes(),
        &options.seed.to_le_bytes(),
        check.command.as_bytes(),
        &check.timeout.as_millis().to_le_bytes(),
        check.cwd.as_os_str().as_encoded_bytes(),
        &[u8::from(relapses.is_some())],
    ];
    for word in words {
        hash.update(&(word.len() as u64).to_le_bytes());
        hash.update(word);
    }
    hash.finalize().to_hex().to_string()
}

fn refused(error: &dyn std::fmt::Display) -> Untested {
    Untested::Refused(error.to_string())
}
