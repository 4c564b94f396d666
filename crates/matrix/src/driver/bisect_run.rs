//! Drives a bisection: asks where to look next, provides what is needed there, runs one iteration
//! and tells what came of it. Everything the record knows already is told first.

use std::collections::HashSet;

use retake_matrix::bisect::{Answer, Bisect, Observation};
use retake_matrix::browsers::BrowserError;
use retake_matrix::config::{CHROME, CODE};
use retake_matrix::plan::{CellKey, Matrix, Step, StepKind};
use retake_types::{LoopId, Outcome};

use super::history::{History, Row};
use super::iterate::{Ground, Ran};
use super::screen::Screen;
use super::setting::Setting;
use super::supply::{Supply, Trouble};
use retake_runner::signals;
use retake_runner::worker::Slot;

pub struct Search<'a> {
    pub setting: &'a Setting,
    pub supply: &'a mut Supply,
    /// One cell for each point, in the order of the points.
    pub matrix: &'a Matrix,
    pub axis: String,
    /// `None` judges by exit code.
    pub metric: Option<String>,
    pub loop_id: LoopId,
    pub screen: &'a Screen,
}

/// Why a search ended without its answer.
pub enum Ended {
    Interrupted,
    Broken(String),
}

impl Search<'_> {
    fn observe_row(&self, row: &Row) -> Observation {
        if row.timed_out {
            return Observation::TimedOut;
        }
        let value = self.metric.as_ref().and_then(|metric| row.metrics.get(metric));
        match value.filter(|_| row.ok) {
            Some(metric) => Observation::Value(metric.value),
            None => Observation::Exit(row.exit_code),
        }
    }

    fn observe(&self, ran: &Ran) -> Observation {
        if matches!(ran.outcome, Outcome::TimedOut) {
            return Observation::TimedOut;
        }
        let value = self.metric.as_ref().and_then(|metric| ran.metrics.get(metric));
        match value.filter(|_| ran.ok()) {
            Some(metric) => Observation::Value(metric.value),
            None => Observation::Exit(ran.exit_code),
        }
    }

    /// Searches to the end.
    pub fn run(
        mut self,
        slot: &mut Slot,
        mut bisect: Bisect,
        mut keys: Vec<CellKey>,
        history: &History,
    ) -> Result<Answer, Ended> {
        let at = self.matrix.axis(&self.axis).unwrap_or(0);
        let points: Vec<String> =
            self.matrix.cells.iter().map(|cell| self.matrix.value(cell, at).to_owned()).collect();
        let mut next: Vec<u64> = keys.iter().map(|key| history.next_iteration(*key)).collect();
        for (point, key) in points.iter().zip(&keys) {
            for row in history.of(*key) {
                bisect.observe(point, self.observe_row(row));
            }
        }
        let scratch = super::iterate::scratch(self.setting, 0).map_err(Ended::Broken)?;
        let mut there: HashSet<usize> = HashSet::new();
        let mut count = 0;
        while let Some(point) = bisect.next_point().map(str::to_owned) {
            if signals::received().is_some() {
                return Err(Ended::Interrupted);
            }
            let Some(place) = points.iter().position(|known| *known == point) else { break };
            if there.insert(place) {
                match self.provide(slot, place) {
                    Ok(()) => keys = self.supply.identity.keys(self.matrix),
                    Err(Trouble::Interrupted) => return Err(Ended::Interrupted),
                    Err(Trouble::Failed(why)) => {
                        self.screen.notice(&why);
                        bisect.observe(&point, Observation::Unavailable);
                        continue;
                    }
                }
            }
            count += 1;
            let step = Step {
                cell: place,
                kind: StepKind::Iteration,
                iteration: next[place],
                number: count,
            };
            next[place] += 1;
            let ground = Ground {
                setting: self.setting,
                supply: self.supply,
                matrix: self.matrix,
                keys: &keys,
                loop_id: self.loop_id,
                adaptive: self.metric.is_some(),
                sizes: Vec::new(),
                blocked: false,
            };
            let name = ground.name(place);
            self.screen.live(&format!("  [{count:>3}] {name}"));
            let ran = ground.run(slot, &scratch, &step).map_err(Ended::Broken)?;
            if matches!(ran.outcome, Outcome::Cancelled(_)) {
                return Err(Ended::Interrupted);
            }
            self.screen.clear();
            let observation = self.observe(&ran);
            let said = match observation {
                Observation::Value(value) => {
                    format!("  {}={value:.3}", self.metric.as_deref().unwrap_or_default())
                }
                Observation::Exit(125) => "  (skipped)".to_owned(),
                Observation::Exit(0) => self
                    .metric
                    .as_ref()
                    .map_or_else(String::new, |metric| format!("  (reported no {metric})")),
                _ => String::new(),
            };
            self.screen.line(&format!(
                "  [{count:>3}] {name} #{}    {}ms  exit:{}{said}",
                step.iteration, ran.duration_ms, ran.exit_code
            ));
            bisect.observe(&point, observation);
        }
        drop(scratch);
        super::iterate::tidy(&self.setting.scratch());
        Ok(bisect.answer(&self.axis))
    }

    /// What the iterations at a point need.
    fn provide(&mut self, slot: &mut Slot, place: usize) -> Result<(), Trouble> {
        let cell = &self.matrix.cells[place];
        let value = |name: &str| {
            self.matrix.axis(name).map(|axis| self.matrix.value(cell, axis).to_owned())
        };
        match value(CODE) {
            Some(reference) if !self.supply.code.contains_key(&reference) => {
                self.supply.code(slot, self.setting, &reference, self.loop_id, self.screen)?;
            }
            Some(_) => {}
            None => self.supply.here(slot, self.setting, self.loop_id, self.screen)?,
        }
        if let Some(version) = value(CHROME)
            && !self.supply.browsers.contains_key(&version)
        {
            self.supply.browser(self.setting, &version, self.screen).map_err(
                |error| match error {
                    BrowserError::Interrupted { .. } => Trouble::Interrupted,
                    error => Trouble::Failed(format!("chrome {version}: {error}")),
                },
            )?;
        }
        Ok(())
    }
}
