//! The command of a matrix: one for all cells, or several that form an axis.

/// The axis of several commands.
pub const COMMAND: &str = "command";

/// One of several commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCommand {
    /// The value of the axis; the text itself if no other name is given.
    pub name: String,
    /// With `{axis}` in place of values of other axes.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandConfig {
    /// Cells differ in the environment, and in values of axes in the text.
    One(String),
    /// Each is a value of the axis [`COMMAND`].
    Several(Vec<NamedCommand>),
}

impl CommandConfig {
    pub fn several(&self) -> &[NamedCommand] {
        match self {
            Self::One(_) => &[],
            Self::Several(commands) => commands,
        }
    }

    /// The commands for people, one per line.
    pub fn text(&self) -> String {
        match self {
            Self::One(text) => text.clone(),
            Self::Several(commands) => {
                commands.iter().map(|command| command.text.as_str()).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

/// Replaces `{name}` by values. Unknown names stay, and so does `${name}`, which is for the shell.
pub fn fill<'v>(text: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        filled.push_str(before);
        let name = from.find('}').map(|close| &from[1..close]);
        let known = name.filter(|_| !before.ends_with('$')).and_then(|name| {
            let value = value(name)?;
            Some((name, value))
        });
        rest = match known {
            Some((name, value)) => {
                filled.push_str(value);
                &from[name.len() + 2..]
            }
            None => {
                filled.push('{');
                &from[1..]
            }
        };
    }
    filled.push_str(rest);
    filled
}

/// Whether a text uses the value of an axis.
pub fn uses(text: &str, axis: &str) -> bool {
    let used = std::cell::Cell::new(false);
    fill(text, |name| {
        used.set(used.get() || name == axis);
        None
    });
    used.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_for_the_names_of_axes_and_nothing_else() {
        let value = |name: &str| match name {
            "n" => Some("10"),
            "odd" => Some("{n}"),
            _ => None,
        };
        let cases = [
            ("sort {n}", "sort 10"),
            ("{n}{n} {m} {", "1010 {m} {"),
            ("awk '{print $1}' {n} ${n} }", "awk '{print $1}' 10 ${n} }"),
            // Inserted text is not expanded again.
            ("{odd}", "{n}"),
            ("{{n}}", "{10}"),
            ("ä{n}ö", "ä10ö"),
        ];
        for (text, expected) in cases {
            assert_eq!(fill(text, value), expected);
        }
        assert!(uses("sort {n}", "n") && !uses("sort ${n} {m}", "n"));
    }
}
