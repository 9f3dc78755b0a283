//! Errors of requests. Only a few answers prove anything about an object.

use std::{error::Error, fmt, time::Duration};

use kube::core::Status;

use crate::model::{
    failure::{Failure, Reasoned},
    foreign::ForeignText,
    trace::Step,
};

/// Limit of a server's `Retry-After`, against a wrong value.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A failed request, with its verb and path.
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
        /// The object that the answer names.
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
    /// The connection did not prove its cluster; the request was not sent.
    #[error("{verb} {path}: not sent: {cause}")]
    Unproven {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// Why the proof failed.
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
        /// The limit.
        after: Duration,
    },
    /// An answer that cannot be read.
    #[error("{verb} {path}: unreadable answer: {cause}")]
    Unreadable {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// The decoder's error.
        cause: String,
    },
    /// Blocked by a safety check; not sent.
    #[error("{verb} {path}: held back: {cause}")]
    Blocked {
        /// HTTP verb.
        verb: &'static str,
        /// Request path.
        path: String,
        /// Which check and why.
        cause: String,
    },
}

/// Error of a connection that failed its proof.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Unproven(pub ApiError);

/// The object that a refusal names.
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
    /// The HTTP status or one word, as a metric label.
    pub fn short_reason(&self) -> String {
        match self {
            Self::Refused { code, .. } => code.to_string(),
            Self::Unreachable { .. } => "unreachable".to_owned(),
            Self::Unproven { .. } => "unproven".to_owned(),
            Self::Timeout { .. } => "timeout".to_owned(),
            Self::Unreadable { .. } => "unreadable".to_owned(),
            Self::Blocked { .. } => "held".to_owned(),
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

    pub(super) fn unreachable(verb: &'static str, path: &str, error: &dyn Error) -> Self {
        Self::Unreachable {
            verb,
            path: path.to_owned(),
            cause: ForeignText::new(&chain(error)).into(),
        }
    }

    /// The error of a connection: unproven, blocked or unreachable.
    pub(super) fn not_sent(verb: &'static str, path: &str, error: &(dyn Error + 'static)) -> Self {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        match causes.find_map(|error| error.downcast_ref()) {
            Some(Unproven(Self::Blocked { cause, .. })) => Self::blocked(verb, path, cause.clone()),
            Some(Unproven(why)) => Self::unproven(verb, path, why),
            None => Self::unreachable(verb, path, error),
        }
    }

    /// Not sent, because the proof failed with `why`.
    fn unproven(verb: &'static str, path: &str, why: &Self) -> Self {
        Self::Unproven {
            verb,
            path: path.to_owned(),
            cause: why.to_string(),
            retry_after: why.retry_after(),
            code: why.code(),
        }
    }

    pub(super) fn blocked(verb: &'static str, path: &str, cause: String) -> Self {
        Self::Blocked {
            verb,
            path: path.to_owned(),
            cause,
        }
    }

    /// The answer cannot be decoded.
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
            | Self::Blocked { .. } => None,
        }
    }

    /// The list or watch has to restart: its resourceVersion is too old.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// Whether it proves the object's absence. The 404 of a missing route names no object.
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

    /// The server's `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } | Self::Unproven { retry_after, .. } => *retry_after,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Unreadable { .. } | Self::Blocked { .. } => None,
        }
    }
}

/// The error and its causes on one line, without repetitions.
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
    /// This error as a failure of a step.
    pub fn failure(&self, step: Step) -> Failure {
        Failure {
            retry_after: self.retry_after(),
            ..Failure::new(step, "", self)
        }
    }
}

impl Reasoned for ApiError {
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        self.short_reason().into()
    }
}
