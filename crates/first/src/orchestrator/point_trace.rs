//! The crash points one run of a workload passed, and whether two runs passed the same ones.

use crate::channel::Message;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PointTrace {
    labels: Vec<String>,
    /// Threads other than the workload's own reached points: their order is the scheduler's.
    threaded: bool,
}

impl PointTrace {
    pub(crate) fn of(messages: &[Message]) -> Self {
        let mut trace = Self::default();
        for message in messages {
            if let Message::Point { own_thread, label } = message {
                trace.labels.push(label.clone());
                trace.threaded |= !own_thread;
            }
        }
        trace
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The last point passed, for messages: `crash point 3 ("commit")`.
    pub(crate) fn last(&self) -> Option<String> {
        Some(format!("crash point {} ({:?})", self.len(), self.labels.last()?))
    }

    /// The first point at which two runs differ, as far as both went. Where threads took part the
    /// order of labels means nothing, and only the number of points can be compared.
    pub(crate) fn difference(&self, later: &Self) -> Option<String> {
        if self.threaded || later.threaded {
            return None;
        }
        let pairs = self.labels.iter().zip(&later.labels);
        let (index, (before, now)) = pairs.enumerate().find(|(_, (before, now))| before != now)?;
        Some(format!("crash point {} was {before:?} in one run and {now:?} in another", index + 1))
    }

    #[cfg(test)]
    pub(crate) fn scripted(labels: &[&str]) -> Self {
        Self { labels: labels.iter().map(|label| (*label).to_owned()).collect(), threaded: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_difference() {
        let short = PointTrace::scripted(&["a"]);
        let long = PointTrace::scripted(&["a", "b"]);
        assert_eq!(short.difference(&long), None);
        assert_eq!(long.difference(&short), None);
        let other = PointTrace::scripted(&["a", "c", "d"]);
        let said = long.difference(&other).unwrap();
        assert_eq!(said, r#"crash point 2 was "b" in one run and "c" in another"#);
    }

    #[test]
    fn threads_may_take_turns_as_they_like() {
        let point = |own_thread, label: &str| Message::Point { own_thread, label: label.into() };
        let one = PointTrace::of(&[point(true, "a"), point(false, "b")]);
        let two = PointTrace::of(&[point(true, "b"), point(true, "a")]);
        assert_eq!(one.difference(&two), None);
        assert_eq!(two.difference(&one), None);
    }
}
