//! Results as a table: a row for each step in the order of an undisturbed run, a column for each fault.

use std::{collections::HashMap, fmt};

use super::{
    fault::Fault,
    point::{Point, Step, When},
    run::JOURNAL,
};

/// The table.
pub struct Matrix {
    steps: Vec<Step>,
    points: Vec<Point>,
    cells: HashMap<(Step, Fault), Cell>,
}

/// Result of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Survived,
    Broke(String),
    /// The undisturbed run needed another attempt here, which none of these runs needed: event timing differs.
    Missed,
}

impl Matrix {
    /// An empty table with the steps of an undisturbed run.
    pub fn of(points: Vec<Point>) -> Self {
        let before = points.iter().filter(|point| point.when == When::Before);
        Self {
            steps: before.map(|point| point.step.clone()).collect(),
            points,
            cells: HashMap::new(),
        }
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Steps without a point after them: a new effect lacks its checkpoint.
    pub fn without_after(&self) -> Vec<&Step> {
        let after = |step: &&Step| !self.points.iter().any(|it| it.when == When::After && it.step == **step);
        self.steps.iter().filter(after).collect()
    }

    /// Whether a fault can happen at a step: a deleted object cannot be deleted again.
    pub fn applies(&self, step: &Step, fault: Fault) -> bool {
        if !fault.deletes_object() {
            return true;
        }
        let position = |wanted: &dyn Fn(&Point) -> bool| self.points.iter().position(wanted);
        // By the agent; or, for a pod that has terminated before, by the API server as soon as its deletion is requested,
        // after which the agent lists it again.
        let deleted = position(&|it| it.when == When::After && it.step.verb == "DELETE");
        let asked = position(&|it| it.step.nth == 2 && it.step.is(JOURNAL, "begun"));
        position(&|it| it.when == When::Before && it.step == *step) < deleted.or(asked)
    }

    pub fn set(&mut self, step: Step, fault: Fault, cell: Cell) {
        self.cells.insert((step, fault), cell);
    }

    /// Cells that did not survive.
    pub fn broken(&self) -> Vec<String> {
        let cells = self.steps.iter().flat_map(|step| {
            Fault::ALL
                .iter()
                .filter_map(move |fault| match self.cells.get(&(step.clone(), *fault)) {
                    Some(Cell::Broke(why)) => Some(format!("{step}: {fault}: {why}")),
                    Some(Cell::Survived | Cell::Missed) | None => None,
                })
        });
        cells.collect()
    }

    pub fn count(&self) -> usize {
        self.cells.len()
    }

    fn cell(&self, step: &Step, fault: Fault) -> &'static str {
        match self.cells.get(&(step.clone(), fault)) {
            Some(Cell::Survived) => "survived",
            Some(Cell::Broke(_)) => "BROKE",
            Some(Cell::Missed) => "missed",
            None if self.applies(step, fault) => ".",
            None => "-",
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        let width = names.iter().map(String::len).max().unwrap_or_default();
        write!(f, "{:width$}", "step")?;
        for fault in Fault::ALL {
            write!(f, "  {fault:16}")?;
        }
        writeln!(f)?;
        for (step, name) in self.steps.iter().zip(names) {
            write!(f, "{name:width$}")?;
            for fault in Fault::ALL {
                write!(f, "  {:16}", self.cell(step, fault))?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "(. not drawn in this run; - cannot be: the object is gone; missed: that attempt was not needed this time)"
        )
    }
}
