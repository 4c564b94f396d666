//! Tasks for several workers, where a task may add tasks. Ends when no task is left and no worker
//! is busy.

use std::sync::{Condvar, Mutex, PoisonError};

pub(super) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// Last in, first out: depth first keeps the number of open directories small.
    tasks: Vec<T>,
    working: usize,
    stopped: bool,
}

impl<T> WorkQueue<T> {
    pub(super) fn new(first: T) -> Self {
        let state = State { tasks: vec![first], working: 0, stopped: false };
        Self { state: state.into(), changed: Condvar::new() }
    }

    pub(super) fn push(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.tasks.len();
        state.tasks.extend(tasks);
        match state.tasks.len() - before {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Prevents workers from starting another task.
    pub(super) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.changed.notify_all();
    }

    /// Works until all tasks are done.
    pub(super) fn work(&self, mut on: impl FnMut(T)) {
        /// Unregisters the worker even if its task panics, so that the others do not wait forever.
        struct Working<'q, T>(&'q WorkQueue<T>);
        impl<T> Drop for Working<'_, T> {
            fn drop(&mut self) {
                let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.working -= 1;
                if state.working == 0 && state.tasks.is_empty() {
                    self.0.changed.notify_all();
                }
            }
        }
        while let Some(task) = self.next() {
            let _working = Working(self);
            on(task);
        }
    }

    fn next(&self) -> Option<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                state.working += 1;
                return Some(task);
            }
            if state.working == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
