//! What can go wrong between the agent and a driver.

use std::{error::Error, fmt, path::PathBuf, time::Duration};

use tonic::{Code, Status};

use super::registry::Kind;
use crate::{
    model::{
        failure::{HELD, OTHER, Reasoned},
        foreign::ForeignText,
    },
    node::effects::Held,
};
/// A driver that was needed and is not there to be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} driver {driver:?} is gone from this node: {why} (looked for below {looked_in:?}); what it holds can only be \
     taken back once its pod runs here again"
)]
pub struct DriverGone {
    /// Of which kind it would be.
    pub kind: Kind,
    /// Its name.
    pub driver: String,
    /// How that was seen.
    pub why: String,
    /// The directory in which drivers register.
    pub looked_in: PathBuf,
}

/// A call to a driver that failed: which one, about what, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// No connection, or it broke while the call was out: what the driver did is not known.
    #[error("{call}: the driver cannot be reached: {cause}")]
    Unreachable {
        /// The call.
        call: Call,
        /// The innermost cause.
        cause: String,
    },
    /// No answer in time: what the driver did is not known.
    #[error("{call}: no answer within {after:?}")]
    Timeout {
        /// The call.
        call: Call,
        /// How long the answer was waited for.
        after: Duration,
    },
    /// The driver said no. The volume or device counts as still held, unless the code is `NotFound` and the kernel shows nothing
    /// of the volume.
    #[error("{call}: {code:?}: \"{message}\"")]
    Failed {
        /// The call.
        call: Call,
        /// The driver's class of error.
        code: Code,
        /// The driver's words.
        message: String,
    },
    /// The path cannot be sent.
    #[error("{call}: the path is no UTF-8")]
    NoText {
        /// The call that was not made.
        call: Call,
    },
    /// Effects are not allowed now; nothing was sent.
    #[error("{call}: {held}")]
    Held {
        /// The call that was not made.
        call: Call,
        /// Why.
        held: Held,
    },
}

/// A call to a driver, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name of the call.
    pub name: &'static str,
    /// Name of the driver, or its registration socket while that is not known.
    pub driver: String,
    /// A path, or claims; empty if it is about neither.
    pub target: String,
    /// The driver's own name of the volume that it is about.
    pub volume: Option<String>,
}

// === impl DriverError ===

impl DriverError {
    pub(crate) fn from_status(call: Call, status: &Status) -> Self {
        // A status that came over the wire has no source; one that tonic made of a broken connection has.
        match status.source() {
            Some(source) => Self::unreachable(call, source),
            None => Self::Failed {
                call,
                code: status.code(),
                message: ForeignText::new(status.message()).into(),
            },
        }
    }

    pub(super) fn unreachable(call: Call, error: &(dyn Error + 'static)) -> Self {
        let innermost = std::iter::successors(Some(error), |&error| error.source()).last();
        Self::Unreachable {
            call,
            cause: ForeignText::new(&innermost.unwrap_or(error).to_string()).into(),
        }
    }

    /// The call that this is about.
    pub fn call(&self) -> &Call {
        match self {
            Self::Unreachable { call, .. }
            | Self::Timeout { call, .. }
            | Self::Failed { call, .. }
            | Self::NoText { call }
            | Self::Held { call, .. } => call,
        }
    }

    /// Whether the driver was out of reach, as opposed to the call having failed or hung.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Failed { code, .. } => *code == Code::Unavailable,
            Self::Timeout { .. } | Self::NoText { .. } | Self::Held { .. } => false,
        }
    }

    /// Whether the driver has answered that there is no such volume.
    pub fn does_not_know_the_volume(&self) -> bool {
        let is_about_one = self.call().volume.is_some();
        is_about_one
            && matches!(
                self,
                Self::Failed {
                    code: Code::NotFound,
                    ..
                }
            )
    }

    /// Whether the gate was the cause, so that trying anything else now is in vain.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }
}

// === impl Call ===

impl Call {
    pub(crate) fn new(name: &'static str, driver: &str, target: impl Into<String>) -> Self {
        Self {
            name,
            driver: driver.to_owned(),
            target: target.into(),
            volume: None,
        }
    }

    /// The same, about this volume: whoever knows the driver's storage knows it by that name, and not by our path.
    pub(super) fn about(self, volume: &str) -> Self {
        let volume = Some(volume.to_owned());
        Self { volume, ..self }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of driver {:?}", self.name, self.driver)?;
        match &self.volume {
            Some(volume) => write!(f, " for volume {volume:?}"),
            None if self.target.is_empty() => Ok(()),
            None => write!(f, " for {:?}", self.target),
        }
    }
}

impl Reasoned for DriverError {
    /// A class of gRPC's, where the driver has answered.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::Failed { code, .. } => format!("{code:?}").into(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            Self::NoText { .. } => OTHER.into(),
            Self::Held { .. } => HELD.into(),
        }
    }
}

impl Reasoned for DriverGone {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        "unregistered".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_driver_says_stays_on_one_line_and_names_driver_call_and_code() {
        let call = Call::new("NodeUnpublishVolume", "csi.example.com", "/pods/u/mount").about("vol/1");
        let error = DriverError::from_status(call, &Status::internal("umount: busy\nERROR forged"));
        assert_eq!(
            error.to_string(),
            "NodeUnpublishVolume of driver \"csi.example.com\" for volume \"vol/1\": Internal: \"umount: busy\\nERROR forged\""
        );
    }

    #[test]
    fn a_driver_that_is_gone_is_told_with_where_it_was_looked_for_and_what_helps() {
        let gone = DriverGone {
            kind: Kind::Csi,
            driver: "csi.example.com".to_owned(),
            why: "none of 3 sockets registers it".to_owned(),
            looked_in: "/var/lib/kubelet/plugins_registry".into(),
        };
        assert_eq!(
            gone.to_string(),
            "CSI driver \"csi.example.com\" is gone from this node: none of 3 sockets registers it (looked for below \
             \"/var/lib/kubelet/plugins_registry\"); what it holds can only be taken back once its pod runs here again"
        );
    }
}
