//! The systemd unit of a kubelet that does not work, and why it does not. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::words::format_count;

/// The unit of a kubelet that does not work. The states have systemd's names (org.freedesktop.systemd1(5)).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletUnit {
    /// Its name, such as `kubelet.service`.
    pub unit: String,
    /// `LoadState`: `loaded`, `masked`, or why it cannot be loaded.
    pub load_state: String,
    /// `UnitFileState`, such as `enabled` or `disabled`.
    pub unit_file_state: String,
    /// `ActiveState`, such as `active`, `activating` or `failed`.
    pub active_state: String,
    /// `SubState`, such as `running` or `auto-restart`.
    pub sub_state: String,
    /// `Result` of the last run, such as `exit-code`, `oom-kill` or `start-limit-hit`.
    pub result: String,
    /// How its main process last exited; `None` if it runs, or has not run.
    pub exit: Option<UnitExit>,
    /// `NRestarts`: how often systemd has restarted it since it was last started by a user.
    pub restarts: u32,
    /// `InvocationID`: its last run, as the journal names it.
    #[serde(skip)]
    pub run: String,
    /// Since when it has its state.
    pub since: Option<Timestamp>,
    /// It was not started because one of its conditions is not met, such as `ConditionPathExists=`.
    pub has_unmet_condition: bool,
    /// Its main process.
    pub main_process: Option<MainProcess>,
    /// The last line in systemd's journal that says why the kubelet fails.
    pub last_error: Option<String>,
    /// Why the journal could not be read.
    pub journal_unread: Option<String>,
}

/// The exit of a unit's main process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum UnitExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(String),
}

/// The main process of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MainProcess {
    /// Its process ID.
    pub pid: i32,
    /// A signal has stopped it (state T).
    pub is_stopped: bool,
    /// The kernel function in which it sleeps uninterruptibly (state D); empty if the kernel hides it.
    pub waits_in: Option<String>,
}

/// What the states of a unit amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum UnitState {
    /// Its main process exits, and systemd restarts it.
    Restarting,
    /// It has failed and is not restarted.
    Failed,
    /// It is starting, for example in `ExecStartPre=`.
    Starting,
    /// Its main process runs.
    Running,
    /// It is being stopped.
    Stopping,
    /// It is masked.
    Masked,
    /// Its file cannot be loaded.
    Unloadable,
    /// It was not started because of an unmet condition.
    ConditionUnmet,
    /// It is stopped.
    Stopped,
}

// === impl KubeletUnit ===

impl KubeletUnit {
    /// Its state in one word.
    pub fn state(&self) -> UnitState {
        let restarts = self.sub_state.starts_with("auto-restart") || self.exit.is_some() && self.restarts > 0;
        match (&*self.active_state, &*self.load_state) {
            ("active" | "activating" | "reloading", _) if restarts => UnitState::Restarting,
            ("activating", _) => UnitState::Starting,
            ("active" | "reloading", _) => UnitState::Running,
            ("deactivating", _) => UnitState::Stopping,
            (_, "masked") => UnitState::Masked,
            ("failed", _) => UnitState::Failed,
            (_, "loaded") if self.has_unmet_condition => UnitState::ConditionUnmet,
            (_, "loaded") => UnitState::Stopped,
            (..) => UnitState::Unloadable,
        }
    }

    /// Whether its journal can say why the kubelet does not work: it was not stopped by a user.
    pub fn has_reason_in_journal(&self) -> bool {
        use UnitState::{Failed, Restarting, Running, Starting, Stopping};
        matches!(self.state(), Restarting | Failed | Starting | Running | Stopping)
    }

    /// The same with the last exit and error of `before`, while a restarted unit has not exited again. Otherwise each start would
    /// change the message.
    #[must_use]
    pub fn after(self, before: Option<&Self>) -> Self {
        // A start by a user sets the counter to zero.
        let was_restarted = |before: &&Self| {
            before.state() == UnitState::Restarting
                && before.unit == self.unit
                && self.restarts > 0
                && before.restarts <= self.restarts
        };
        match before.filter(was_restarted) {
            Some(before) if self.exit.is_none() => Self {
                exit: before.exit.clone(),
                result: before.result.clone(),
                last_error: self.last_error.or_else(|| before.last_error.clone()),
                ..self
            },
            _ => self,
        }
    }

    /// One sentence that stays the same while the kubelet fails the same way: without counts and states of processes.
    pub fn summary(&self) -> String {
        format!("{}{}", self.sentence(false), self.reason())
    }

    /// The same with all that is known.
    pub fn details(&self) -> String {
        format!("{}{}", self.sentence(true), self.reason())
    }

    fn sentence(&self, is_detailed: bool) -> String {
        let (unit, end) = (&self.unit, self.end());
        let since = self
            .since
            .map(|since| since.strftime(" since %Y-%m-%d %H:%M:%S UTC").to_string());
        let since = since.unwrap_or_default();
        let process = self.main_process.as_ref().map(|process| process.text(is_detailed));
        let process = process.unwrap_or_default();
        match self.state() {
            UnitState::Restarting => {
                let restarts = format!(" ({})", format_count(self.restarts.into(), "restart"));
                let restarts = if is_detailed { restarts } else { String::new() };
                format!("{unit} fails and is restarted each time{restarts}{end}")
            }
            UnitState::Failed if self.result == "start-limit-hit" => {
                format!("{unit} has failed too often and is not restarted any more{end}")
            }
            UnitState::Failed => format!("{unit} has failed{end}"),
            UnitState::Starting => format!("{unit} is starting ({}){since}", self.sub_state),
            UnitState::Running => format!("{unit} runs{since}{process}"),
            UnitState::Stopping => format!("{unit} is being stopped ({}){since}{process}", self.sub_state),
            UnitState::Masked => format!("{unit} is masked"),
            UnitState::Unloadable => format!("{unit} cannot be loaded ({})", self.load_state),
            UnitState::ConditionUnmet => {
                format!("{unit} is stopped{since}: a condition of the unit, such as ConditionPathExists=, is not met")
            }
            UnitState::Stopped => {
                let disabled = if self.is_disabled() { ", and disabled" } else { "" };
                format!("{unit} is stopped{since}{disabled}, by a user or a program, or it exited with code 0")
            }
        }
    }

    fn is_disabled(&self) -> bool {
        self.unit_file_state == "disabled"
    }

    /// How the last run ended.
    fn end(&self) -> String {
        const SAID_BY_EXIT: [&str; 4] = ["exit-code", "signal", "core-dump", "start-limit-hit"];
        let exit = self.exit.as_ref().map(|exit| match exit {
            UnitExit::Code(code) => format!("exit code {code}"),
            UnitExit::Signal(signal) => format!("killed by {signal}"),
        });
        // While a restarted unit runs, its result is still `success`.
        let result = Some(&self.result).filter(|result| !["", "success"].contains(&result.as_str()));
        let result = result.filter(|result| exit.is_none() || !SAID_BY_EXIT.contains(&result.as_str()));
        let parts: String = result.cloned().into_iter().chain(exit).collect::<Vec<_>>().join(", ");
        if parts.is_empty() { parts } else { format!(": {parts}") }
    }

    fn reason(&self) -> String {
        match (&self.last_error, &self.journal_unread) {
            (Some(error), _) => format!("; last error: {error}"),
            (None, Some(why)) => format!("; its journal cannot be read: {why}"),
            (None, None) => String::new(),
        }
    }

    /// What a user can do.
    pub fn remedy(&self) -> String {
        let unit = &self.unit;
        let journal = format!("run `journalctl -u {unit} -n 50`");
        match (self.state(), &self.main_process) {
            (UnitState::Restarting, _) => format!("{journal}; after the repair `systemctl restart {unit}`"),
            (UnitState::Failed, _) => {
                format!("{journal}; after the repair `systemctl reset-failed {unit}` and `systemctl start {unit}`")
            }
            (UnitState::Starting, _) => {
                format!("run `systemctl status {unit}`: it shows the command that does not finish")
            }
            (UnitState::Running | UnitState::Stopping, Some(process)) if process.is_stopped => {
                format!("run `kill -CONT {}`: a signal has stopped this process", process.pid)
            }
            (UnitState::Running | UnitState::Stopping, _) => format!(
                "{journal} and `systemctl restart {unit}`; a process that does not exit: `systemctl kill --signal=KILL {unit}`"
            ),
            (UnitState::Masked, _) => format!("run `systemctl unmask {unit}` and `systemctl start {unit}`"),
            (UnitState::Unloadable, _) => {
                format!("run `systemctl status {unit}`; after the repair `systemctl daemon-reload`")
            }
            (UnitState::ConditionUnmet, _) => format!("run `systemctl status {unit}`: it names the condition"),
            (UnitState::Stopped, _) if self.is_disabled() => format!("run `systemctl enable --now {unit}`"),
            (UnitState::Stopped, _) => format!("run `systemctl start {unit}`"),
        }
    }
}

// === impl MainProcess ===

impl MainProcess {
    fn text(&self, is_detailed: bool) -> String {
        let state = match &self.waits_in {
            _ if !is_detailed => String::new(),
            _ if self.is_stopped => ", which a signal has stopped".to_owned(),
            Some(function) if function.is_empty() => ", in uninterruptible sleep".to_owned(),
            Some(function) => format!(", in uninterruptible sleep in {function}"),
            None => String::new(),
        };
        format!(", main process {}{state}", self.pid)
    }
}

#[cfg(test)]
mod tests;
