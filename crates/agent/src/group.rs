//! State shared by concurrent loops: one budget, and the limits of accounts. When an agent has to
//! wait for a limit, all agents with the same account wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use retake_types::loop_record::agent::Spent;

use crate::adapters::AgentKind;
use crate::plan::AgentStopReason;
use crate::queue::TaskAllowance;

/// Several loops with one budget.
#[derive(Debug, Default)]
pub struct Group {
    /// The total budget.
    budget: TaskAllowance,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The cost of ended loops.
    before: Spent,
    /// The cost of each running loop so far.
    spent: Vec<(usize, Spent)>,
    /// No agent of this kind is used before this time.
    limits: Vec<(AgentKind, Instant)>,
}

/// One loop of a group.
#[derive(Clone, Debug)]
pub struct GroupMember {
    group: Arc<Group>,
    number: usize,
}

impl Group {
    /// `before` is what ended loops have spent of the budget.
    pub fn new(budget: TaskAllowance, before: Spent) -> Arc<Self> {
        let state = Mutex::new(State { before, ..State::default() });
        Arc::new(Self { budget, state })
    }

    pub fn member(self: &Arc<Self>, number: usize) -> GroupMember {
        GroupMember { group: self.clone(), number }
    }

    /// The total cost so far, including running loops.
    pub fn spent(&self) -> Spent {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).total()
    }

    /// A loop has ended, with this final cost.
    pub fn ended(&self, number: usize, spent: Spent) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.spent.retain(|(known, _)| *known != number);
        state.before.add(spent);
    }
}

impl State {
    fn total(&self) -> Spent {
        let mut total = self.before;
        self.spent.iter().for_each(|(_, spent)| total.add(*spent));
        total
    }
}

impl GroupMember {
    /// Sets what this loop has spent so far. Returns the budget that all loops together have
    /// exhausted, if any.
    pub fn spend(&self, spent: Spent) -> Option<AgentStopReason> {
        let mut state = self.group.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.spent.iter_mut().find(|(known, _)| *known == self.number) {
            Some((_, known)) => *known = spent,
            None => state.spent.push((self.number, spent)),
        }
        let total = state.total();
        let TaskAllowance { cost_usd, tokens, .. } = self.group.budget;
        if cost_usd.is_some_and(|most| total.cost_usd >= most) {
            Some(AgentStopReason::BudgetCost)
        } else if tokens.is_some_and(|most| total.tokens >= most) {
            Some(AgentStopReason::BudgetTokens)
        } else {
            None
        }
    }

    /// The account of agents of this kind is limited for this long.
    pub fn limited(&self, kind: AgentKind, remaining: Duration) {
        let until = Instant::now() + remaining;
        let mut state = self.group.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.limits.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => *known = until.max(*known),
            None => state.limits.push((kind, until)),
        }
    }

    /// How long agents of this kind must still wait, if at all.
    pub fn limit_left(&self, kind: AgentKind) -> Option<Duration> {
        let state = self.group.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, until) = state.limits.iter().find(|(known, _)| *known == kind)?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(cost_usd: f64, tokens: u64) -> Spent {
        Spent { cost_usd, tokens }
    }

    #[test]
    fn the_budget_is_used_up_by_all_together_also_while_they_run() {
        let budget = TaskAllowance { cost_usd: Some(3.0), tokens: Some(100), time: None };
        let group = Group::new(budget, spent(1.0, 10));
        let (a, b) = (group.member(0), group.member(1));
        assert_eq!(a.spend(spent(0.5, 10)), None);
        assert_eq!(b.spend(spent(1.0, 10)), None);
        assert_eq!(a.spend(spent(1.0, 20)), Some(AgentStopReason::BudgetCost));
        assert_eq!(a.spend(spent(0.5, 90)), Some(AgentStopReason::BudgetTokens));
        assert_eq!(a.spend(spent(0.5, 20)), None, "its last word counts");
        group.ended(0, spent(0.75, 20));
        assert_eq!(group.spent(), spent(2.75, 40));
        assert_eq!(b.spend(spent(1.25, 10)), Some(AgentStopReason::BudgetCost));
    }

    #[test]
    fn a_limit_holds_for_all_agents_of_the_kind_and_for_no_other() {
        let group = Group::new(TaskAllowance::default(), Spent::default());
        let (a, b) = (group.member(0), group.member(1));
        assert_eq!(b.limit_left(AgentKind::Claude), None);
        a.limited(AgentKind::Claude, Duration::from_secs(600));
        a.limited(AgentKind::Claude, Duration::from_secs(5));
        assert!(b.limit_left(AgentKind::Claude) > Some(Duration::from_secs(500)));
        assert_eq!(b.limit_left(AgentKind::Codex), None);
        a.limited(AgentKind::Codex, Duration::ZERO);
        assert_eq!(b.limit_left(AgentKind::Codex), None);
    }
}
