//! The name of a crash state, short enough for a command line: where the crash happened and what
//! survived it. Together with the recording and the model it identifies the state.
//!
//! ```text
//! 120            after operation 120, everything written survives (a kill)
//! 120-           power loss, but only files that are never synced lost something
//! 120-17,19.1    … and operation 17 and part 1 of operation 19 are lost
//! 120+18         of the unsynced parts, only operation 18 survives
//! 120+           none of them survives
//! 120~-…         while operation 120 waits for the device
//! 120-@19.1<512  of part 19.1 only the bytes before offset 512 of the file survive; `>`: those from it on;
//!                `<512>4096`: those before 512 and those from 4096 on
//! ```

use std::fmt;
use std::str::FromStr;

use crate::model::micro_op::{Part, Torn};
use crate::model::replay::Point;

/// Names a crash state: when the crash happened, and which parts that were not durable survived.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StateKey {
    /// When the crash happened.
    pub point: Point,
    /// What survived.
    pub kept: Kept,
    /// A part of which only a piece survived.
    pub torn: Option<(Part, Torn)>,
}

/// Which unsynced parts survive. The lists are in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Kept {
    /// All of them, including what is only in memory: the machine keeps running.
    Everything,
    /// All but these parts.
    AllBut(Vec<Part>),
    /// Only these parts.
    Only(Vec<Part>),
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.point.operation)?;
        if self.point.during {
            f.write_str("~")?;
        }
        let parts = match &self.kept {
            Kept::Everything => return Ok(()),
            Kept::AllBut(parts) => {
                f.write_str("-")?;
                parts
            }
            Kept::Only(parts) => {
                f.write_str("+")?;
                parts
            }
        };
        for (at, part) in parts.iter().enumerate() {
            write!(f, "{}{part}", if at == 0 { "" } else { "," })?;
        }
        match self.torn {
            Some((part, Torn::Head(cut))) => write!(f, "@{part}<{cut}"),
            Some((part, Torn::Tail(cut))) => write!(f, "@{part}>{cut}"),
            Some((part, Torn::Ends(head, tail))) => write!(f, "@{part}<{head}>{tail}"),
            None => Ok(()),
        }
    }
}

/// The name of a crash state is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadKey(pub String);

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` names no crash state: one looks like `120-17.0,19.1`", self.0)
    }
}

impl std::error::Error for BadKey {}

impl FromStr for StateKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        parse(text).ok_or_else(|| BadKey(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<StateKey> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (operation, rest) = text.split_at(end);
    let operation = operation.parse().ok()?;
    let (during, rest) = match rest.strip_prefix('~') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let (rest, torn) = match rest.split_once('@') {
        Some((rest, torn)) => (rest, Some(parse_torn(torn)?)),
        None => (rest, None),
    };
    let kept = match (rest.strip_prefix('-'), rest.strip_prefix('+')) {
        (Some(parts), _) => Kept::AllBut(parse_parts(parts)?),
        (_, Some(parts)) => Kept::Only(parse_parts(parts)?),
        _ if rest.is_empty() && torn.is_none() => Kept::Everything,
        _ => return None,
    };
    Some(StateKey { point: Point { operation, during }, kept, torn })
}

fn parse_torn(text: &str) -> Option<(Part, Torn)> {
    let (part, torn) = if let Some((part, cut)) = text.split_once('<') {
        let torn = match cut.split_once('>') {
            Some((head, tail)) => Torn::Ends(head.parse().ok()?, tail.parse().ok()?),
            None => Torn::Head(cut.parse().ok()?),
        };
        (part, torn)
    } else {
        let (part, cut) = text.split_once('>')?;
        (part, Torn::Tail(cut.parse().ok()?))
    };
    Some((parse_part(part)?, torn))
}

fn parse_parts(text: &str) -> Option<Vec<Part>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut parts = text.split(',').map(parse_part).collect::<Option<Vec<_>>>()?;
    parts.sort_unstable();
    Some(parts)
}

fn parse_part(text: &str) -> Option<Part> {
    let (operation, index) = text.split_once('.')?;
    Some(Part { operation: operation.parse().ok()?, index: index.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part() -> impl Strategy<Value = Part> {
        (any::<u32>(), any::<u8>()).prop_map(|(operation, index)| Part { operation, index })
    }

    fn key() -> impl Strategy<Value = StateKey> {
        let parts = || {
            prop::collection::vec(part(), 0..4).prop_map(|mut parts| {
                parts.sort_unstable();
                parts
            })
        };
        let torn = prop_oneof![
            any::<u64>().prop_map(Torn::Head),
            any::<u64>().prop_map(Torn::Tail),
            any::<(u64, u64)>().prop_map(|(head, tail)| Torn::Ends(head, tail)),
        ];
        let kept = prop_oneof![
            Just((Kept::Everything, None)),
            (
                prop_oneof![parts().prop_map(Kept::AllBut), parts().prop_map(Kept::Only)],
                prop::option::of((part(), torn)),
            ),
        ];
        (any::<u32>(), any::<bool>(), kept).prop_map(|(operation, during, (kept, torn))| StateKey {
            point: Point { operation, during },
            kept,
            torn,
        })
    }

    proptest! {
        #[test]
        fn state_keys_round_trip_through_text(key in key()) {
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "x", "-1", "3/", "3@1.0<5", "3-1", "3-1.0,", "3-1.0@", "3-1.0@1.0=4"] {
            assert_eq!(text.parse::<StateKey>(), Err(BadKey(text.to_owned())));
        }
    }
}
