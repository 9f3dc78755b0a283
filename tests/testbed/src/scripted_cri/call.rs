//! A changing call, and patterns for expected calls.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Type of a changing call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A command in a container.
    ExecSync,
    /// Signal, wait, kill.
    StopContainer,
    /// End of a sandbox's network and of all that runs in it.
    StopPodSandbox,
    RemoveContainer,
    RemovePodSandbox,
}

/// A received call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which call.
    pub kind: Kind,
    /// ID as sent.
    pub id: String,
    /// Name of the container or of the sandbox's pod; the ID if unknown.
    pub name: String,
    /// UID of the pod; empty if the world does not know the id.
    pub pod_uid: String,
    /// Timeout as it was sent, where the call has one.
    pub timeout: Option<Duration>,
    /// Command of an exec.
    pub command: Vec<String>,
}

/// Pattern of a call. Unset fields match anything.
#[derive(Debug, Clone)]
pub struct Pattern {
    kind: Kind,
    target: Option<String>,
    pod_uid: Option<String>,
    timeout: Option<RangeInclusive<Duration>>,
    command: Option<Vec<String>>,
}

macro_rules! kinds_of_calls {
    ($($kind:ident),*) => { $(
        #[doc = concat!("Patterns of `", stringify!($kind), "`.")]
        #[derive(Debug)]
        pub struct $kind;

        impl $kind {
            /// On the container with this name in the spec or this id, or on the sandbox of the pod with this name or UID
            /// or with this id.
            pub fn of(target: &str) -> Pattern {
                Pattern::new(Kind::$kind, Some(target))
            }

            /// On any container or sandbox.
            pub fn any() -> Pattern {
                Pattern::new(Kind::$kind, None)
            }
        }
    )* };
}

kinds_of_calls!(
    ExecSync,
    StopContainer,
    RemoveContainer,
    StopPodSandbox,
    RemovePodSandbox
);

impl Pattern {
    fn new(kind: Kind, target: Option<&str>) -> Self {
        Self {
            kind,
            target: target.map(str::to_owned),
            pod_uid: None,
            timeout: None,
            command: None,
        }
    }

    /// Any call of a kind.
    pub(super) fn every(kind: Kind) -> Self {
        Self::new(kind, None)
    }

    /// In the pod with this UID; for names that several pods have.
    #[must_use]
    pub fn in_pod(mut self, uid: &str) -> Self {
        self.pod_uid = Some(uid.to_owned());
        self
    }

    /// With exactly this timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.timeout_within(timeout..=timeout)
    }

    #[must_use]
    pub fn timeout_within(mut self, range: RangeInclusive<Duration>) -> Self {
        self.timeout = Some(range);
        self
    }

    /// With exactly this command.
    #[must_use]
    pub fn command(mut self, command: &[&str]) -> Self {
        self.command = Some(command.iter().map(|&word| word.to_owned()).collect());
        self
    }

    /// The right call on the right target, with any arguments.
    pub(super) fn aims_at(&self, seen: &Seen) -> bool {
        let on_target = |target: &String| match self.kind {
            Kind::ExecSync | Kind::StopContainer | Kind::RemoveContainer => [&seen.name, &seen.id].contains(&target),
            Kind::StopPodSandbox | Kind::RemovePodSandbox => [&seen.name, &seen.id, &seen.pod_uid].contains(&target),
        };
        self.kind == seen.kind
            && self.target.as_ref().is_none_or(on_target)
            && self.pod_uid.as_ref().is_none_or(|uid| *uid == seen.pod_uid)
    }

    /// Whether the call matches completely.
    pub(super) fn matches(&self, seen: &Seen) -> bool {
        self.aims_at(seen)
            && self
                .timeout
                .as_ref()
                .is_none_or(|range| seen.timeout.is_some_and(|timeout| range.contains(&timeout)))
            && self.command.as_ref().is_none_or(|command| *command == seen.command)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.kind, self.target.as_deref().unwrap_or("anything"))?;
        if let Some(uid) = &self.pod_uid {
            write!(f, " in pod {uid}")?;
        }
        if let Some(range) = &self.timeout {
            if range.start() == range.end() {
                write!(f, ", timeout {:?}", range.start())?;
            } else {
                write!(f, ", timeout {:?} to {:?}", range.start(), range.end())?;
            }
        }
        if let Some(command) = &self.command {
            write!(f, ", command {command:?}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.kind, self.name)?;
        if !self.pod_uid.is_empty() {
            write!(f, " in pod {}", self.pod_uid)?;
        }
        if let Some(timeout) = self.timeout {
            write!(f, ", timeout {timeout:?}")?;
        }
        if !self.command.is_empty() {
            write!(f, ", command {:?}", self.command)?;
        }
        Ok(())
    }
}
