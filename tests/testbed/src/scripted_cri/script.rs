//! Expected changing calls, their order, and their answers.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use tonic::Code;

use super::call::{Kind, Pattern, Seen};

/// An expected call and its handling.
#[derive(Debug, Clone)]
pub struct Expected {
    pattern: Pattern,
    pub(super) delay: Duration,
    pub(super) reply: Reply,
}

/// Answer of an expected call, and whether the world changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// As the world decides.
    Natural,
    /// None; the world does not change.
    Hang,
    /// An error; the world does not change.
    Refuse(Code, String),
    /// An error, although the world changes.
    DoButRefuse(Code, String),
    /// Success; the world does not change.
    Pretend,
    /// This exit code of a command.
    Exit(i32),
}

/// Expected calls.
#[derive(Debug, Default)]
pub(super) struct Script {
    steps: VecDeque<Step>,
    at_any_time: Vec<Expected>,
    violations: Vec<String>,
}

/// Parallel lists, each in its own order; the next step starts when all of them are empty.
#[derive(Debug)]
struct Step {
    lanes: Vec<VecDeque<Expected>>,
}

/// Expects a call; by default the world decides.
pub fn expect(pattern: Pattern) -> Expected {
    Expected {
        pattern,
        delay: Duration::ZERO,
        reply: Reply::Natural,
    }
}

impl Expected {
    /// Waits this long before the call takes effect.
    #[must_use]
    pub fn then(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Never answers.
    #[must_use]
    pub fn hang(self) -> Self {
        self.reply(Reply::Hang)
    }

    /// Fails without effect.
    #[must_use]
    pub fn error(self, code: Code, message: &str) -> Self {
        self.reply(Reply::Refuse(code, message.to_owned()))
    }

    /// Takes effect, and then fails.
    #[must_use]
    pub fn reply_error_but_do_it(self, code: Code, message: &str) -> Self {
        self.reply(Reply::DoButRefuse(code, message.to_owned()))
    }

    /// Succeeds without effect.
    #[must_use]
    pub fn reply_ok_but_do_nothing(self) -> Self {
        self.reply(Reply::Pretend)
    }

    /// Ends a command with this exit code.
    #[must_use]
    pub fn exit(self, code: i32) -> Self {
        self.reply(Reply::Exit(code))
    }

    fn reply(mut self, reply: Reply) -> Self {
        self.reply = reply;
        self
    }
}

impl Script {
    pub(super) fn lanes(&mut self, lanes: impl IntoIterator<Item = Vec<Expected>>) {
        let lanes: Vec<_> = lanes
            .into_iter()
            .filter(|lane| !lane.is_empty())
            .map(VecDeque::from)
            .collect();
        if !lanes.is_empty() {
            self.steps.push_back(Step { lanes });
        }
    }

    pub(super) fn at_any_time(&mut self, expected: Expected) {
        self.at_any_time.push(expected);
    }

    /// Every changing call may come, any number of times.
    pub(super) fn everything(&mut self) {
        use Kind::{ExecSync, RemoveContainer, RemovePodSandbox, StopContainer, StopPodSandbox};
        for kind in [
            ExecSync,
            StopContainer,
            StopPodSandbox,
            RemoveContainer,
            RemovePodSandbox,
        ] {
            self.at_any_time(expect(Pattern::every(kind)));
        }
    }

    /// Consumes a call, or records and returns why it was not expected.
    pub(super) fn admit(&mut self, seen: &Seen) -> Result<Expected, String> {
        if let Some(expected) = self.take_next(seen) {
            return Ok(expected);
        }
        if let Some(expected) = self.at_any_time.iter().find(|expected| expected.pattern.matches(seen)) {
            return Ok(expected.clone());
        }
        let violation = self.objection(seen);
        self.violations.push(violation.clone());
        Err(violation)
    }

    pub(super) fn refuse(&mut self, violation: String) {
        self.violations.push(violation);
    }

    fn take_next(&mut self, seen: &Seen) -> Option<Expected> {
        let step = self.steps.front_mut()?;
        let at = step
            .lanes
            .iter()
            .position(|lane| lane.front().is_some_and(|next| next.pattern.matches(seen)))?;
        let expected = step.lanes[at].pop_front();
        if step.lanes[at].is_empty() {
            step.lanes.remove(at);
        }
        if step.lanes.is_empty() {
            self.steps.pop_front();
        }
        expected
    }

    fn objection(&self, seen: &Seen) -> String {
        let due: Vec<_> = self.steps.front().into_iter().flat_map(Step::due).collect();
        let all = || {
            self.steps
                .iter()
                .flat_map(|step| step.lanes.iter().flatten())
                .chain(&self.at_any_time)
        };
        let why = if due.iter().any(|next| next.pattern.aims_at(seen)) {
            "came with other arguments than expected"
        } else if all().any(|expected| expected.pattern.matches(seen)) {
            "came too early"
        } else {
            "was not expected"
        };
        let mut text = format!("{seen} {why}; due:");
        if due.is_empty() {
            text.push_str(" nothing");
        }
        for next in due {
            // Writing to a String cannot fail.
            let _ = write!(text, " [{}]", next.pattern);
        }
        text
    }

    /// Everything expected came, and nothing else.
    pub(super) fn is_fulfilled(&self) -> bool {
        self.steps.is_empty() && self.violations.is_empty()
    }

    pub(super) fn has_violations(&self) -> bool {
        !self.violations.is_empty()
    }

    /// The mismatches so far, one per line.
    pub(super) fn complaints(&self) -> Vec<String> {
        let missing = self.steps.iter().flat_map(|step| step.lanes.iter().flatten());
        let missing = missing.map(|expected| format!("never came: {}", expected.pattern));
        self.violations.iter().cloned().chain(missing).collect()
    }
}

impl Step {
    fn due(&self) -> impl Iterator<Item = &Expected> {
        self.lanes.iter().filter_map(VecDeque::front)
    }
}
