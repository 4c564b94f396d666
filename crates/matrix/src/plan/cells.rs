//! The cells of a matrix and their identities.

use std::collections::{BTreeMap, HashSet};

use retake_types::ShellMode;
use retake_types::loop_record::matrix::CellKey;

use crate::build::Build;
use crate::config::{
    CHROME, CODE, COMMAND, CommandConfig, Config, NamedCommand, ResetMode, fill, uses,
};
use crate::shell_free;
use crate::table::Axis;

/// One index in each axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell(pub Box<[u32]>);

/// All cells, before anything is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    pub axes: Vec<Axis>,
    pub cells: Vec<Cell>,
    /// The values of the axis [`COMMAND`]; empty if one command runs in all cells.
    pub commands: Vec<NamedCommand>,
    /// Whether `{axis}` in commands and hooks stands for the value of a cell.
    pub fills_values: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("there is no axis {name}; choose from {}", list(.known))]
    Axis { name: String, known: Vec<String> },
    #[error("{axis} has no value {value}; choose from {}", list(.known))]
    Value { axis: String, value: String, known: Vec<String> },
    #[error("no cell is left: what is excluded and what is filtered leave nothing to run")]
    Empty,
}

fn list(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

impl Matrix {
    /// The product of all axes, without excluded cells, with included ones.
    pub fn of(config: &Config) -> Self {
        let mut axes = config.all_axes();
        let excluded = |axes: &[Axis], place: &[u32]| {
            config.exclude.iter().any(|rule| {
                rule.iter().all(|(name, value)| {
                    axes.iter()
                        .zip(place)
                        .any(|(axis, at)| axis.name == *name && axis.values[*at as usize] == *value)
                })
            })
        };
        let mut cells = Vec::new();
        let mut place = vec![0u32; axes.len()];
        'product: loop {
            if axes.iter().all(|axis| !axis.values.is_empty()) && !excluded(&axes, &place) {
                cells.push(Cell(place.clone().into()));
            }
            // Counts like an odometer: the last axis turns fastest.
            for at in (0..axes.len()).rev() {
                place[at] += 1;
                if (place[at] as usize) < axes[at].values.len() {
                    continue 'product;
                }
                place[at] = 0;
            }
            break;
        }
        let mut known: HashSet<Cell> = HashSet::new();
        if !config.include.is_empty() {
            known = cells.iter().cloned().collect();
        }
        for values in &config.include {
            let place: Vec<u32> = axes
                .iter_mut()
                .map(|axis| {
                    let value = values.get(&axis.name).cloned().unwrap_or_default();
                    let at = axis.values.iter().position(|known| *known == value);
                    let at = at.unwrap_or_else(|| {
                        axis.values.push(value);
                        axis.values.len() - 1
                    });
                    u32::try_from(at).unwrap_or(u32::MAX)
                })
                .collect();
            let cell = Cell(place.into());
            if known.insert(cell.clone()) {
                cells.push(cell);
            }
        }
        let commands = config.command.several().to_vec();
        Self { axes, cells, commands, fills_values: config.fills_values }
    }

    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|axis| axis.name == name)
    }

    /// Keeps the cells that have, for every named axis, one of the named values.
    pub fn filter(&mut self, filters: &[(String, String)]) -> Result<(), FilterError> {
        let mut wanted: BTreeMap<usize, HashSet<u32>> = BTreeMap::new();
        for (name, value) in filters {
            let axis = self.axis(name).ok_or_else(|| FilterError::Axis {
                name: name.clone(),
                known: self.axes.iter().map(|axis| axis.name.clone()).collect(),
            })?;
            let values = &self.axes[axis].values;
            let at = values.iter().position(|known| known == value).ok_or_else(|| {
                let (axis, value, known) = (name.clone(), value.clone(), values.clone());
                FilterError::Value { axis, value, known }
            })?;
            wanted.entry(axis).or_default().insert(u32::try_from(at).unwrap_or(u32::MAX));
        }
        self.cells
            .retain(|cell| wanted.iter().all(|(axis, values)| values.contains(&cell.0[*axis])));
        if self.cells.is_empty() { Err(FilterError::Empty) } else { Ok(()) }
    }

    /// Removes every cell with this value, because its browser or code is unavailable.
    pub fn remove(&mut self, axis: &str, value: &str) {
        let Some(axis) = self.axis(axis) else { return };
        let values = &self.axes[axis].values;
        self.cells.retain(|cell| values[cell.0[axis] as usize] != value);
    }

    /// Adds a ref to the code, with a cell for each existing combination of the other axes. Returns
    /// the new cells; `None` without code.
    pub fn add_ref(&mut self, reference: &str) -> Option<Vec<Cell>> {
        let code = self.axis(CODE)?;
        let values = &mut self.axes[code].values;
        let at = values.iter().position(|known| known == reference).unwrap_or_else(|| {
            values.push(reference.to_owned());
            values.len() - 1
        });
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        let mut known: HashSet<Cell> = self.cells.iter().cloned().collect();
        let mut added = Vec::new();
        for cell in &self.cells {
            let mut cell = cell.clone();
            cell.0[code] = at;
            if known.insert(cell.clone()) {
                added.push(cell);
            }
        }
        self.cells.extend(added.iter().cloned());
        Some(added)
    }

    /// For each combination of the other axes, the cells with these values of one axis, and a name
    /// for the combination if there are several.
    pub fn lines_of(&self, axis: &str, values: &[String]) -> Vec<(Option<String>, Self)> {
        let Some(axis) = self.axis(axis) else { return Vec::new() };
        let others: Vec<usize> =
            self.varying_axes().into_iter().filter(|other| *other != axis).collect();
        let mut known: HashSet<Cell> = HashSet::new();
        let mut lines = Vec::new();
        for cell in &self.cells {
            let at = |place: usize| {
                let mut cell = cell.clone();
                cell.0[axis] = u32::try_from(place).unwrap_or(u32::MAX);
                cell
            };
            if !known.insert(at(0)) {
                continue;
            }
            let name = self.parts(cell, &others);
            let (axes, commands) = (self.axes.clone(), self.commands.clone());
            let fills_values = self.fills_values;
            let mut line = Self { axes, cells: Vec::new(), commands, fills_values };
            line.axes[axis].values = values.to_vec();
            line.cells = (0..values.len()).map(at).collect();
            lines.push(((!name.is_empty()).then(|| name.join(" ")), line));
        }
        lines
    }

    /// The values of an axis that occur in cells, in order.
    pub fn used(&self, axis: &str) -> Vec<&str> {
        let Some(axis) = self.axis(axis) else { return Vec::new() };
        let used: HashSet<u32> = self.cells.iter().map(|cell| cell.0[axis]).collect();
        let values = self.axes[axis].values.iter().enumerate();
        values
            .filter(|(at, _)| used.contains(&u32::try_from(*at).unwrap_or(u32::MAX)))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    pub fn value(&self, cell: &Cell, axis: usize) -> &str {
        &self.axes[axis].values[cell.0[axis] as usize]
    }

    /// The command of a cell among several.
    fn command(&self, cell: &Cell) -> Option<&NamedCommand> {
        let name = self.value(cell, self.axis(COMMAND)?);
        self.commands.iter().find(|command| command.name == name)
    }

    /// A text with the values of a cell inserted.
    pub fn fill(&self, cell: &Cell, text: &str) -> String {
        if !self.fills_values {
            return text.to_owned();
        }
        fill(text, |name| {
            let axis = self.axis(name).filter(|_| name != COMMAND)?;
            Some(self.value(cell, axis))
        })
    }

    /// The command line of a cell.
    pub fn command_text(&self, cell: &Cell, config: &Config) -> String {
        match (&config.command, self.command(cell)) {
            (CommandConfig::One(text), _) => self.fill(cell, text),
            (CommandConfig::Several(_), Some(command)) => self.fill(cell, &command.text),
            (CommandConfig::Several(_), None) => String::new(),
        }
    }

    /// The display name of a cell's command, with the values of the cell inserted.
    pub fn command_name(&self, cell: &Cell) -> Option<String> {
        Some(self.fill(cell, &self.command(cell)?.name))
    }

    /// Whether the name of a cell's command shows its value of an axis.
    pub fn in_command_name(&self, cell: &Cell, axis: usize) -> bool {
        let shown = |command: &NamedCommand| uses(&command.name, &self.axes[axis].name);
        self.axes[axis].name != COMMAND && self.command(cell).is_some_and(shown)
    }

    /// The axes that name what is measured, as far as there are any: refs, commands, browsers. The
    /// values of other axes are workloads.
    pub fn measured_axes(&self) -> Vec<usize> {
        let command = Some(COMMAND).filter(|_| !self.commands.is_empty());
        [Some(CODE), command, Some(CHROME)]
            .into_iter()
            .flatten()
            .filter_map(|name| self.axis(name))
            .collect()
    }

    /// The axes whose values are compared with each other, the most important one first: those that
    /// name what is measured. Workloads differ in size by intention, so they are compared only
    /// where nothing else varies.
    pub fn compared_axes(&self) -> Vec<usize> {
        let varying = self.varying_axes();
        let measured: Vec<usize> =
            self.measured_axes().into_iter().filter(|axis| varying.contains(axis)).collect();
        if measured.is_empty() { varying } else { measured }
    }

    /// The values of several axes for display, without those that the command's name shows.
    fn parts(&self, cell: &Cell, axes: &[usize]) -> Vec<String> {
        let command = self.axis(COMMAND).filter(|axis| axes.contains(axis));
        let mut parts: Vec<String> =
            command.and_then(|_| self.command_name(cell)).into_iter().collect();
        let named = !parts.is_empty();
        let rest = axes.iter().filter(|&&axis| {
            !named || (Some(axis) != command && !self.in_command_name(cell, axis))
        });
        parts.extend(
            rest.map(|&axis| format!("{}={}", self.axes[axis].name, self.value(cell, axis))),
        );
        parts
    }

    /// `chrome=… code=…`, as configured.
    pub fn name(&self, cell: &Cell) -> String {
        self.parts(cell, &(0..self.axes.len()).collect::<Vec<_>>()).join(" ")
    }

    /// A cell by its values; only the value if there is one axis.
    pub fn short_name(&self, cell: usize) -> String {
        self.named(&self.cells[cell], &(0..self.axes.len()).collect::<Vec<_>>())
    }
}

/// The names of two cells in a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairNames {
    pub a: String,
    pub b: String,
    /// The values of other axes that both have, for axes with several values.
    pub at: Option<String>,
}

impl Matrix {
    /// The axes with several values among the cells.
    pub fn varying_axes(&self) -> Vec<usize> {
        let several = |axis: &usize| {
            let mut values = self.cells.iter().map(|cell| cell.0[*axis]);
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        (0..self.axes.len()).filter(several).collect()
    }

    fn named(&self, cell: &Cell, axes: &[usize]) -> String {
        match axes {
            // A ref or a browser is recognisable without the axis name; a 4 is not.
            [axis]
                if [CODE, CHROME].contains(&self.axes[*axis].name.as_str())
                    || self.axes[*axis].name == COMMAND && self.commands.is_empty() =>
            {
                self.value(cell, *axis).to_owned()
            }
            axes => self.parts(cell, axes).join(" "),
        }
    }

    /// Two cells by what distinguishes them. `varying` are the axes with several values.
    pub fn pair_names(&self, a: usize, b: usize, varying: &[usize]) -> PairNames {
        let (of_a, of_b) = (&self.cells[a], &self.cells[b]);
        let (differing, shared): (Vec<usize>, Vec<usize>) =
            varying.iter().partition(|&&axis| of_a.0[axis] != of_b.0[axis]);
        let commands = differing.iter().any(|&axis| self.axes[axis].name == COMMAND);
        // A value that both commands' names show is not repeated.
        let shown = |axis: usize| {
            commands && self.in_command_name(of_a, axis) && self.in_command_name(of_b, axis)
        };
        let part = |axis: usize| match (&self.axes[axis].name, self.value(of_a, axis)) {
            (name, value) if name == COMMAND && !self.commands.is_empty() => value.to_owned(),
            (name, value) => format!("{name}={value}"),
        };
        let at: Vec<String> = shared.into_iter().filter(|&axis| !shown(axis)).map(part).collect();
        PairNames {
            a: self.named(of_a, &differing),
            b: self.named(of_b, &differing),
            at: (!at.is_empty()).then(|| at.join(" ")),
        }
    }

    /// A cell by the axes with several values, and by its command if there could be others.
    pub fn varying_name(&self, cell: usize, varying: &[usize]) -> String {
        if let Some(command) = self.axis(COMMAND).filter(|_| !self.commands.is_empty()) {
            return self.parts(&self.cells[cell], &[varying, &[command]].concat()).join(" ");
        }
        match varying {
            [] => self.name(&self.cells[cell]),
            axes => self.named(&self.cells[cell], axes),
        }
    }
}

/// Whether a text of the configuration differs from cell to cell.
fn fills(config: &Config) -> bool {
    let command = match &config.command {
        CommandConfig::One(text) => Some(text),
        CommandConfig::Several(_) => None,
    };
    let setup = config.setup.as_ref().filter(|_| config.code.is_none());
    let texts = [command, config.prepare.as_ref(), config.conclude.as_ref(), setup];
    let axes = config.all_axes();
    let used =
        |text: &String| axes.iter().any(|axis| axis.name != COMMAND && uses(text, &axis.name));
    config.fills_values && texts.into_iter().flatten().any(used)
}

/// Computes the keys of cells from what they have in common and their resolved values.
#[derive(Clone, Debug)]
pub struct Identity {
    common: blake3::Hasher,
    /// By axis and value: the exact version of a browser, the commit of a ref.
    resolved: BTreeMap<(String, String), String>,
}

impl Identity {
    /// The common properties of all cells of a configuration: the command's text, the configured
    /// environment (never the inherited one), and other non-default settings.
    pub fn of(config: &Config) -> Self {
        let mut identity = match &config.command {
            CommandConfig::One(text) => {
                let mut identity = Self::new(text, &config.env);
                // Earlier releases included the start of a shell in the measurement.
                let shell = if shell_free::words(text).is_some() { "none" } else { "subtracted" };
                identity.differ("shell", shell);
                identity
            }
            CommandConfig::Several(commands) => {
                let mut identity = Self::new("", &config.env);
                for command in commands {
                    // Two names of one command are one cell, unless it is compared with itself.
                    let named = config.fresh.map_or("", |_| command.name.as_str());
                    identity.resolve(COMMAND, &command.name, &format!("{named}\n{}", command.text));
                }
                identity
            }
        };
        match config.shell {
            ShellMode::Auto => {}
            ShellMode::Always => identity.differ("shell", "always"),
            ShellMode::Never => identity.differ("shell", "never"),
        }
        if let Some(ignored) = config.ignore_failure.text() {
            identity.differ("ignore_failure", &ignored);
        }
        for metric in &config.metrics {
            if let Some(source) = metric.source_text() {
                identity.differ(&format!("metric {}", metric.name), &source);
            }
        }
        if let Some(id) = config.fresh {
            identity.differ("fresh", &id.to_string());
        }
        if config.setup.is_some() {
            identity.differ("setup", &Build::of(config).hash());
        }
        for (name, text) in [("prepare", &config.prepare), ("conclude", &config.conclude)] {
            if let Some(text) = text {
                identity.differ(name, text);
            }
        }
        if matches!(config.command, CommandConfig::One(_)) && fills(config) {
            // Earlier releases ran the text as it is.
            identity.differ("values", "filled");
        }
        if config.reset != ResetMode::default() {
            identity.differ("reset", config.reset.as_str());
        }
        identity
    }

    /// The identity of a configuration with only these properties.
    pub fn new(command: &str, env: &BTreeMap<String, String>) -> Self {
        let mut common = blake3::Hasher::new();
        add(&mut common, "command");
        add(&mut common, command);
        for (name, value) in env {
            add(&mut common, name);
            add(&mut common, value);
        }
        Self { common, resolved: BTreeMap::new() }
    }

    /// Distinguishes the cells from those of a configuration without this property.
    pub fn differ(&mut self, name: &str, text: &str) {
        add(&mut self.common, "with");
        add(&mut self.common, name);
        add(&mut self.common, text);
    }

    fn resolve(&mut self, axis: &str, value: &str, to: &str) {
        self.resolved.insert((axis.to_owned(), value.to_owned()), to.to_owned());
    }

    pub fn resolve_browser(&mut self, value: &str, version: &str) {
        self.resolve(CHROME, value, version);
    }

    pub fn resolve_code(&mut self, reference: &str, sha: &str) {
        self.resolve(CODE, reference, sha);
    }

    /// The resolved value, or the value itself.
    pub fn resolved<'a>(&'a self, axis: &str, value: &'a str) -> &'a str {
        self.resolved.get(&(axis.to_owned(), value.to_owned())).map_or(value, String::as_str)
    }

    /// The keys of all cells, in order.
    pub fn keys(&self, matrix: &Matrix) -> Vec<CellKey> {
        // Looked up once per value instead of once per cell.
        let values: Vec<Vec<&str>> = matrix
            .axes
            .iter()
            .map(|axis| axis.values.iter().map(|v| self.resolved(&axis.name, v)).collect())
            .collect();
        // The order of the axes in the file must not matter.
        let mut order: Vec<usize> = (0..matrix.axes.len()).collect();
        order.sort_by(|&a, &b| matrix.axes[a].name.cmp(&matrix.axes[b].name));
        let mut common = self.common.clone();
        add(&mut common, "axes");
        let key = |cell: &Cell| {
            let mut hasher = common.clone();
            for &axis in &order {
                add(&mut hasher, &matrix.axes[axis].name);
                add(&mut hasher, values[axis][cell.0[axis] as usize]);
            }
            let mut key = [0; 16];
            key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
            CellKey::from_bytes(key)
        };
        matrix.cells.iter().map(key).collect()
    }
}

/// With its length, so that different lists never hash alike.
fn add(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}
