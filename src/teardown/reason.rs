//! What went wrong, in one word of few, for counting.

use std::{borrow::Cow, fmt};

use nix::errno::Errno;

use crate::{
    api::ApiError,
    node::{
        cgroups,
        cri::CriError,
        effects::Held,
        fault::{Cause, Fault},
        logs,
        plugins::{DriverError, DriverGone},
        pod_dir::BadUid,
        threads::NotDone,
    },
};

pub(super) const HELD: &str = "held";
pub(super) const TIMEOUT: &str = "timeout";
const HANGS: &str = "hangs";
const BUSY: &str = "busy";
const MOUNTED: &str = "mounted";
/// What runs after its stop.
pub(super) const RUNNING: &str = "running";
/// Everything that only words tell.
const OTHER: &str = "other";

/// Something that can be the cause of a failure.
pub trait Reasoned: fmt::Display {
    /// In one word.
    fn reason(&self) -> Cow<'static, str> {
        OTHER.into()
    }
}

impl<T: Reasoned + ?Sized> Reasoned for &T {
    fn reason(&self) -> Cow<'static, str> {
        (**self).reason()
    }
}

impl Reasoned for str {}

impl Reasoned for String {}

impl Reasoned for fmt::Arguments<'_> {}

impl Reasoned for cgroups::BadPart {}

impl Reasoned for logs::BadPart {}

impl Reasoned for BadUid {}

impl Reasoned for DriverGone {
    fn reason(&self) -> Cow<'static, str> {
        "unregistered".into()
    }
}

impl Reasoned for Held {
    fn reason(&self) -> Cow<'static, str> {
        HELD.into()
    }
}

impl Reasoned for NotDone {
    fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::OthersHang => HANGS,
            Self::CutShort => OTHER,
        }
        .into()
    }
}

impl Reasoned for ApiError {
    fn reason(&self) -> Cow<'static, str> {
        self.in_a_word().into()
    }
}

impl Reasoned for CriError {
    /// A class of gRPC's, where the runtime has answered.
    fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::Failed { code, .. } => format!("{code:?}").into(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            Self::Foreign { .. } | Self::Incomplete { .. } => "unreadable".into(),
            Self::Held { .. } => HELD.into(),
        }
    }
}

impl Reasoned for DriverError {
    /// A class of gRPC's, where the driver has answered.
    fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::Failed { code, .. } => format!("{code:?}").into(),
            Self::Unreachable { .. } => "unreachable".into(),
            Self::Timeout { .. } => "timeout".into(),
            Self::NoText { .. } => OTHER.into(),
            Self::Held { .. } => HELD.into(),
        }
    }
}

impl Reasoned for Fault {
    /// The kernel's name of the error, where it has refused.
    fn reason(&self) -> Cow<'static, str> {
        match &self.cause {
            Cause::Errno(errno) => format!("{:?}", Errno::from_raw(errno.raw_os_error())).into(),
            Cause::Held(held) => held.reason(),
            Cause::NotDone(not_done) => not_done.reason(),
            Cause::Hangs(_) => HANGS.into(),
            Cause::Busy(_) | Cause::LoopInUse(_) => BUSY.into(),
            Cause::StillMounted | Cause::MountedElsewhere | Cause::MountedForSomebody => MOUNTED.into(),
            Cause::Processes(_) => "processes".into(),
            Cause::Systemd(_) => "systemd".into(),
            Cause::UnknownPlugin { .. } | Cause::SharedName => "unknown_plugin".into(),
            Cause::NotTakenAway { .. } => "driver".into(),
            _ => OTHER.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::{model::trace::Step, teardown::Failure};

    #[test]
    fn a_failure_is_counted_under_the_kernels_name_of_it_or_a_word_of_ours() {
        let fault = |cause| Fault {
            verb: "unmount",
            path: "/a/b".into(),
            cause,
        };
        for (cause, word) in [
            (Cause::Errno(Errno::BUSY), "EBUSY"),
            (Cause::StillMounted, "mounted"),
            (Cause::Systemd("no".to_owned()), "systemd"),
            (Cause::TooDeep, "other"),
        ] {
            assert_eq!(Failure::of_node(Step::Volumes, &fault(cause)).reason, word);
        }
        assert_eq!(Failure::new(Step::Status, "", "not seen").reason, "other");
    }
}
