//! Errors of requests. Only a few answers prove anything about an object.

use std::{error::Error, fmt, io, time::Duration};

use kube::core::Status;

use crate::{
    model::{
        failure::{BLOCKED, Failure, Reasoned},
        foreign::ForeignText,
        trace::Step,
    },
    words::without_error_codes,
};

/// Limit of a server's `Retry-After`, against a wrong value.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

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
        /// The server's certificate is not trusted, expired, or for another name.
        is_certificate_invalid: bool,
    },
    /// The connection did not prove its cluster; the request was not sent.
    #[error("{verb} {path}: not sent: {cause}")]
    UnverifiedServer {
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
pub(super) struct ProofError(pub ApiError);

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
            Self::UnverifiedServer { .. } => "unproven".to_owned(),
            Self::Timeout { .. } => "timeout".to_owned(),
            Self::Unreadable { .. } => "unreadable".to_owned(),
            Self::Blocked { .. } => BLOCKED.to_owned(),
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
                .map(|retry_after| retry_after.min(MAX_RETRY_AFTER)),
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

    pub(super) fn unreachable(verb: &'static str, path: &str, error: &(dyn Error + 'static)) -> Self {
        Self::Unreachable {
            verb,
            path: path.to_owned(),
            cause: ForeignText::new(&with_causes(error)).into(),
            is_certificate_invalid: is_certificate_invalid(error),
        }
    }

    /// The error of a connection: unproven, blocked or unreachable.
    pub(super) fn not_sent(verb: &'static str, path: &str, error: &(dyn Error + 'static)) -> Self {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        match causes.find_map(|error| error.downcast_ref()) {
            Some(ProofError(Self::Blocked { cause, .. })) => Self::blocked(verb, path, cause.clone()),
            Some(ProofError(why)) => Self::unverified_server(verb, path, why),
            None => Self::unreachable(verb, path, error),
        }
    }

    /// Not sent, because the proof failed with `why`.
    fn unverified_server(verb: &'static str, path: &str, why: &Self) -> Self {
        Self::UnverifiedServer {
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
            | Self::UnverifiedServer { .. }
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
            Self::Refused { retry_after, .. } | Self::UnverifiedServer { retry_after, .. } => *retry_after,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Unreadable { .. } | Self::Blocked { .. } => None,
        }
    }
}

/// Whether TLS rejected the server's certificate. The sources of an `io::Error` lack the error that it wraps.
fn is_certificate_invalid(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>() {
        Some(io_error) => io_error.get_ref().map(|inner| -> &(dyn Error + 'static) { inner }),
        None => error.source(),
    });
    causes.any(|error| matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))))
}

/// The error and its causes on one line, without repetitions.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    without_error_codes(&text)
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

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::Arc, thread};

    use rcgen::{CertificateParams, KeyPair};
    use rustls::{ServerConfig, ServerConnection, crypto::ring, pki_types::PrivatePkcs8KeyDer};

    use super::*;
    use crate::{
        api::{ApiClient, Lane, MetadataClient},
        model::trace::{Blocked, BlockedReason},
        node::effects::Effects,
    };

    #[test]
    fn blocked_request_is_shown_as_blocked_by_the_guard() {
        let error = ApiError::Blocked {
            verb: "DELETE",
            path: "/api/v1/pods".to_owned(),
            cause: "absence proves nothing".to_owned(),
        };
        let blocked = Blocked::from(&error.failure(Step::Delete));
        assert_eq!(blocked.reason, BlockedReason::Guard);
    }

    #[tokio::test]
    async fn both_clients_report_a_server_whose_certificate_is_not_trusted() {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .unwrap();
        let (server, listener) = (Arc::new(server), TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("https://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut connection = ServerConnection::new(Arc::clone(&server)).unwrap();
                connection.complete_io(&mut stream.unwrap()).ok();
            }
        });
        let other_key = KeyPair::generate().unwrap();
        let other_authority = CertificateParams::new([]).unwrap().self_signed(&other_key).unwrap();
        for (url, expected) in [(url.as_str(), true), ("https://127.0.0.1:1", false)] {
            let mut config = kube::Config::new(url.parse().unwrap());
            config.root_cert = Some(vec![other_authority.der().to_vec()]);
            let effects = Effects::none();
            let pods = ApiClient::new(&config, "none".into(), effects.clone(), None, None, "n1").unwrap();
            let collector = MetadataClient::new(&config, "none".into(), effects, None).unwrap();
            let errors = [
                pods.version().await.unwrap_err(),
                collector
                    .json(Lane::Get, "/version", "application/json")
                    .await
                    .unwrap_err(),
            ];
            for error in errors {
                assert!(
                    matches!(error, ApiError::Unreachable { is_certificate_invalid, .. } if is_certificate_invalid == expected),
                    "{error:?}"
                );
            }
        }
    }
}
