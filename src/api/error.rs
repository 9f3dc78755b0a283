//! What a failed request means. Only a few answers prove anything about an object.

use std::{error::Error, fmt, time::Duration};

use kube::core::Status;

use crate::model::{
    failure::{Failure, Reasoned},
    foreign::ForeignText,
    trace::Step,
};

/// However long a server asks to be left alone: a pod must not wait for a mistyped header.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A request that did not do what it should, with its verb and path.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server answered with an error.
    #[error("{verb} {path}: {code} {reason}: {message}")]
    Refused {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// HTTP status.
        code: u16,
        /// `Status.reason`, may be empty.
        reason: String,
        /// `Status.message`, or the start of the body.
        message: String,
        /// From `Retry-After` or `details.retryAfterSeconds`.
        retry_after: Option<Duration>,
        /// What it is about, if it says so.
        about: Option<Box<About>>,
    },
    /// No answer: connection, TLS, or the stream broke.
    #[error("{verb} {path}: {cause}")]
    Unreachable {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// The chain of causes.
        cause: String,
    },
    /// The connection did not prove where it leads: nothing went over it.
    #[error("{verb} {path}: not sent: {cause}")]
    Unproven {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// Why not.
        cause: String,
        /// From `Retry-After` or `details.retryAfterSeconds` of the answer to the proof.
        retry_after: Option<Duration>,
        /// HTTP status of that answer.
        code: Option<u16>,
    },
    /// No answer in time.
    #[error("{verb} {path}: no answer within {after:?}")]
    Timeout {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// How long was waited.
        after: Duration,
    },
    /// An answer that cannot be read.
    #[error("{verb} {path}: unreadable answer: {cause}")]
    Unreadable {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// What the decoder said.
        cause: String,
    },
    /// Held back by one of the guards.
    #[error("{verb} {path}: held back: {cause}")]
    Held {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// Which guard and why.
        cause: String,
    },
}

/// Why a connection was opened and not used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Unproven(pub ApiError);

/// What a refusal says that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// API group, empty for the core one.
    pub group: String,
    /// The resource, such as `configmaps`.
    pub resource: String,
    /// Name of the object.
    pub name: String,
}

impl ApiError {
    /// What went wrong, in a word: an HTTP status, if there is one.
    pub fn in_a_word(&self) -> String {
        match self {
            Self::Refused { code, .. } => code.to_string(),
            Self::Unreachable { .. } => "unreachable".to_owned(),
            Self::Unproven { .. } => "unproven".to_owned(),
            Self::Timeout { .. } => "timeout".to_owned(),
            Self::Unreadable { .. } => "unreadable".to_owned(),
            Self::Held { .. } => "held".to_owned(),
        }
    }

    pub(crate) fn refused(
        verb: &'static str,
        path: &str,
        code: u16,
        retry_after: Option<Duration>,
        body: &[u8],
    ) -> Self {
        let status = serde_json::from_slice::<Status>(body).ok();
        let details = status.as_ref().and_then(|status| status.details.as_ref());
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        let about = details.filter(|details| !details.name.is_empty()).map(|details| {
            Box::new(About {
                group: details.group.clone(),
                resource: details.kind.clone(),
                name: details.name.clone(),
            })
        });
        Self::Refused {
            verb,
            path: path.to_owned(),
            code,
            retry_after: retry_after
                .or((seconds > 0).then(|| Duration::from_secs(seconds.into())))
                .map(|asked| asked.min(LONGEST_RETRY_AFTER)),
            about,
            reason: status
                .as_ref()
                .map_or_else(String::new, |status| ForeignText::new(&status.reason).into()),
            message: match status {
                Some(status) => ForeignText::new(&status.message),
                None => ForeignText::from_bytes(body[..body.len().min(200)].trim_ascii()),
            }
            .into(),
        }
    }

    /// No answer, because of this.
    pub(super) fn unreachable(verb: &'static str, path: &str, error: &dyn Error) -> Self {
        Self::Unreachable {
            verb,
            path: path.to_owned(),
            cause: ForeignText::new(&chain(error)).into(),
        }
    }

    /// No answer because of this error of the connection, which says if the connection was not proven.
    pub(super) fn not_sent(verb: &'static str, path: &str, error: &(dyn Error + 'static)) -> Self {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        match causes.find_map(|error| error.downcast_ref()) {
            Some(Unproven(Self::Held { cause, .. })) => Self::held(verb, path, cause.clone()),
            Some(Unproven(why)) => Self::unproven(verb, path, why),
            None => Self::unreachable(verb, path, error),
        }
    }

    /// Not sent, because of what came of the proof.
    fn unproven(verb: &'static str, path: &str, why: &Self) -> Self {
        Self::Unproven {
            verb,
            path: path.to_owned(),
            cause: why.to_string(),
            retry_after: why.retry_after(),
            code: why.code(),
        }
    }

    /// Held back, because of this.
    pub(super) fn held(verb: &'static str, path: &str, cause: String) -> Self {
        Self::Held {
            verb,
            path: path.to_owned(),
            cause,
        }
    }

    /// An answer that cannot be read, because of this.
    pub fn unreadable(verb: &'static str, path: &str, cause: impl fmt::Display) -> Self {
        Self::Unreadable {
            verb,
            path: path.to_owned(),
            cause: ForeignText::new(&cause.to_string()).into(),
        }
    }

    /// HTTP status of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unreachable { .. }
            | Self::Unproven { .. }
            | Self::Timeout { .. }
            | Self::Unreadable { .. }
            | Self::Held { .. } => None,
        }
    }

    /// The list or watch must start anew: its resourceVersion is too old.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// Whether it proves that there is no such object. A route that is missing is answered with 404 too, but names none.
    pub fn is_absence_of(&self, group: &str, resource: &str, name: &str) -> bool {
        let Self::Refused {
            code: 404,
            reason,
            about,
            ..
        } = self
        else {
            return false;
        };
        let about = about.as_ref();
        reason == "NotFound"
            && about.is_some_and(|it| (&*it.group, &*it.resource, &*it.name) == (group, resource, name))
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } | Self::Unproven { retry_after, .. } => *retry_after,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Unreadable { .. } | Self::Held { .. } => None,
        }
    }
}

/// An error with its causes on one line; each layer repeats less than one might hope.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl ApiError {
    /// The same as a failure of this step.
    pub fn failure(&self, step: Step) -> Failure {
        Failure {
            retry_after: self.retry_after(),
            ..Failure::new(step, "", self)
        }
    }
}

impl Reasoned for ApiError {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        self.in_a_word().into()
    }
}
