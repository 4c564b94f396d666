//! The crash points that one run of a workload passed, and whether two runs passed the same ones.

use std::sync::Arc;

use crate::channel::Message;

/// In a recording each point corresponds to a run that ended there: they share the labels.
#[derive(Debug, Clone, Default)]
pub(crate) struct PointTrace {
    labels: Arc<[String]>,
    /// How many of the labels this run passed.
    passed: usize,
    /// The first point that a thread other than the workload's own reached: from there on the order
    /// depends on the scheduler.
    threaded_from: Option<usize>,
}

impl PointTrace {
    pub(crate) fn of(messages: &[Message]) -> Self {
        let mut labels = Vec::new();
        let mut threaded_from = None;
        for message in messages {
            if let Message::Point { own_thread, label } = message {
                if !own_thread && threaded_from.is_none() {
                    threaded_from = Some(labels.len());
                }
                labels.push(label.clone());
            }
        }
        Self { passed: labels.len(), labels: labels.into(), threaded_from }
    }

    /// The same run, if it had ended at its `points`-th point. `None` if it did not come that far.
    pub(crate) fn until(&self, points: usize) -> Option<Self> {
        (points <= self.passed).then(|| Self { passed: points, ..self.clone() })
    }

    pub(crate) fn len(&self) -> usize {
        self.passed
    }

    fn labels(&self) -> &[String] {
        &self.labels[..self.passed]
    }

    pub(crate) fn last_label(&self) -> Option<&String> {
        self.labels().last()
    }

    /// The last point passed, for messages: `crash point 3 ("commit")`.
    pub(crate) fn last(&self) -> Option<String> {
        Some(format!("crash point {} ({:?})", self.len(), self.last_label()?))
    }

    fn threaded(&self) -> bool {
        self.threaded_from.is_some_and(|first| first < self.passed)
    }

    /// The first point at which two runs differ, up to the end of the shorter one. If several threads took part, the
    /// order of labels is arbitrary, and only the number of points can be compared.
    pub(crate) fn difference(&self, later: &Self) -> Option<String> {
        if Arc::ptr_eq(&self.labels, &later.labels) || self.threaded() || later.threaded() {
            return None;
        }
        let pairs = self.labels().iter().zip(later.labels());
        let (index, (before, now)) = pairs.enumerate().find(|(_, (before, now))| before != now)?;
        Some(format!("crash point {} was {before:?} in one run and {now:?} in another", index + 1))
    }

    #[cfg(test)]
    pub(crate) fn scripted(labels: &[&str]) -> Self {
        let point = |label: &&str| Message::Point { own_thread: true, label: (*label).to_owned() };
        Self::of(&labels.iter().map(point).collect::<Vec<_>>())
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
        let cut = other.until(1).unwrap();
        assert_eq!((cut.len(), cut.last_label().map(String::as_str)), (1, Some("a")));
        assert_eq!(long.difference(&cut), None, "what was cut off does not count");
        assert!(cut.until(2).is_none() && other.until(4).is_none());
    }

    #[test]
    fn threads_may_take_turns_as_they_like() {
        let point = |own_thread, label: &str| Message::Point { own_thread, label: label.into() };
        let one = PointTrace::of(&[point(true, "a"), point(false, "b")]);
        let two = PointTrace::of(&[point(true, "b"), point(true, "a")]);
        assert_eq!(one.difference(&two), None);
        assert_eq!(two.difference(&one), None);
        let before = one.until(1).unwrap();
        assert!(before.difference(&two).is_some(), "up to there the order was the workload's own");
    }
}
