//! Jobs for several workers, where a job may bring more jobs. Ends when none is left and nobody is
//! working on one.

use std::sync::{Condvar, Mutex, PoisonError};

pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    /// Last in, first out: depth first keeps the number of open directories small.
    jobs: Vec<J>,
    working: usize,
    stopped: bool,
}

impl<J> Queue<J> {
    pub(super) fn new(first: J) -> Self {
        let state = State { jobs: vec![first], working: 0, stopped: false };
        Self { state: state.into(), changed: Condvar::new() }
    }

    pub(super) fn push(&self, jobs: impl IntoIterator<Item = J>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.jobs.len();
        state.jobs.extend(jobs);
        match state.jobs.len() - before {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Lets nobody begin another job.
    pub(super) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.changed.notify_all();
    }

    /// Works until everything is done.
    pub(super) fn work(&self, mut on: impl FnMut(J)) {
        /// Counts the worker out even if its job panics: the others must not wait forever.
        struct Working<'q, J>(&'q Queue<J>);
        impl<J> Drop for Working<'_, J> {
            fn drop(&mut self) {
                let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.working -= 1;
                if state.working == 0 && state.jobs.is_empty() {
                    self.0.changed.notify_all();
                }
            }
        }
        while let Some(job) = self.next() {
            let _working = Working(self);
            on(job);
        }
    }

    fn next(&self) -> Option<J> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.jobs.pop() {
                state.working += 1;
                return Some(job);
            }
            if state.working == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
