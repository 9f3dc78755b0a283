//! Errors of requests. Only a few answers prove anything about an object.

use std::{borrow::Cow, error::Error, fmt, io, time::Duration};

use http::{HeaderMap, StatusCode, header, response};
use kube::core::{Status, response::StatusDetails};
use serde::Deserialize;
use tower::BoxError;

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
#[error("{verb} {path}: {kind}")]
pub struct ApiError {
    /// HTTP verb.
    pub verb: &'static str,
    /// Request path.
    pub path: String,
    /// Why it failed.
    pub kind: ErrorKind,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ErrorKind {
    /// The server answered with an error.
    #[error("{code} {reason}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// `Status.reason`, may be empty.
        reason: String,
        /// `Status.message`, or the start of the body.
        message: String,
        /// From `Retry-After` or `details.retryAfterSeconds`.
        retry_after: Option<Duration>,
        /// `Status.details`, which name the object.
        about: Option<Box<StatusDetails>>,
    },
    /// No answer: connection, TLS, or the stream broke.
    #[error("{cause}")]
    Unreachable {
        /// The chain of causes.
        cause: String,
        /// The server's certificate is not trusted, expired, or for another name.
        is_certificate_invalid: bool,
    },
    /// Not sent: the connection did not prove its cluster, for this reason.
    #[error("not sent: {0}")]
    UnverifiedServer(Box<ApiError>),
    /// No answer within this time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// An answer that cannot be read, with the decoder's error.
    #[error("unreadable answer: {0}")]
    Unreadable(String),
    /// Blocked by a safety check, with its reason; not sent.
    #[error("held back: {0}")]
    Blocked(String),
}

// === impl ApiError ===

impl ApiError {
    pub(crate) fn refused(
        verb: &'static str,
        path: &str,
        code: u16,
        retry_after: Option<Duration>,
        body: &[u8],
    ) -> Self {
        let status = serde_json::from_slice::<Status>(body).ok();
        let message = match &status {
            Some(status) => ForeignText::new(&status.message),
            None => ForeignText::from_bytes(body[..body.len().min(200)].trim_ascii()),
        };
        let Status { reason, details, .. } = status.unwrap_or_default();
        let seconds = details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let retry_after = retry_after.or((seconds > 0).then(|| Duration::from_secs(seconds.into())));
        let kind = ErrorKind::Refused {
            code,
            reason: ForeignText::new(&reason).into(),
            message: message.into(),
            retry_after: retry_after.map(|retry_after| retry_after.min(MAX_RETRY_AFTER)),
            about: details.map(Box::new),
        };
        Self::new(verb, path, kind)
    }

    /// The server has refused it, with this answer.
    pub(super) fn from_answer(verb: &'static str, path: &str, head: &response::Parts, body: &[u8]) -> Self {
        Self::refused(verb, path, head.status.as_u16(), retry_after(&head.headers), body)
    }

    /// This request failed for this reason.
    pub fn new(verb: &'static str, path: &str, kind: ErrorKind) -> Self {
        let path = path.to_owned();
        Self { verb, path, kind }
    }

    pub(super) fn unreachable(verb: &'static str, path: &str, error: &(dyn Error + 'static)) -> Self {
        let kind = ErrorKind::Unreachable {
            cause: ForeignText::new(&with_causes(error)).into(),
            is_certificate_invalid: is_certificate_invalid(error),
        };
        Self::new(verb, path, kind)
    }

    /// The error of a connection, or of its proof.
    pub(super) fn not_sent(verb: &'static str, path: &str, error: BoxError) -> Self {
        let kind = match error.downcast::<Self>() {
            Ok(why) if matches!(why.kind, ErrorKind::Blocked(_)) => why.kind,
            Ok(why) => ErrorKind::UnverifiedServer(why),
            Err(error) => return Self::unreachable(verb, path, &*error),
        };
        Self::new(verb, path, kind)
    }

    /// Blocked by a safety check, for this reason.
    pub fn blocked(verb: &'static str, path: &str, cause: String) -> Self {
        Self::new(verb, path, ErrorKind::Blocked(cause))
    }

    /// The answer cannot be decoded.
    pub fn unreadable(verb: &'static str, path: &str, cause: impl fmt::Display) -> Self {
        let cause = ForeignText::new(&cause.to_string()).into();
        Self::new(verb, path, ErrorKind::Unreadable(cause))
    }

    /// HTTP status of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self.kind {
            ErrorKind::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether it proves the object's absence. The 404 of a missing route names no object.
    pub fn is_absence_of(&self, group: &str, resource: &str, name: &str) -> bool {
        let ErrorKind::Refused {
            code: 404,
            reason,
            about: Some(about),
            ..
        } = &self.kind
        else {
            return false;
        };
        reason == "NotFound" && (&*about.group, &*about.kind, &*about.name) == (group, resource, name)
    }

    /// The server's `Retry-After`, also of the answer to a connection's proof.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.kind {
            ErrorKind::Refused { retry_after, .. } => *retry_after,
            ErrorKind::UnverifiedServer(why) => why.retry_after(),
            ErrorKind::Unreachable { .. }
            | ErrorKind::Timeout(_)
            | ErrorKind::Unreadable(_)
            | ErrorKind::Blocked(_) => None,
        }
    }

    /// This error as a failure of a step.
    pub fn failure(&self, step: Step) -> Failure {
        Failure {
            retry_after: self.retry_after(),
            ..Failure::new(step, "", self)
        }
    }
}

/// The `Retry-After` header in seconds. Zero is ignored: callers have their own backoff.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// Decodes a JSON body.
pub fn read<'a, T: Deserialize<'a>>(verb: &'static str, path: &str, body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::unreadable(verb, path, error))
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
    let causes = std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string);
    let text = causes.fold(error.to_string(), |text, cause| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    });
    without_error_codes(&text)
}

impl Reasoned for ApiError {
    /// The HTTP status or one word, as a metric label.
    fn reason(&self) -> Cow<'static, str> {
        match &self.kind {
            ErrorKind::Refused { code, .. } => match StatusCode::from_u16(*code) {
                Ok(status) if status.canonical_reason().is_some() => code.to_string().into(),
                // A server may invent codes.
                _ => "unknown_status".into(),
            },
            ErrorKind::Unreachable { .. } => "unreachable".into(),
            ErrorKind::UnverifiedServer(_) => "unproven".into(),
            ErrorKind::Timeout(_) => "timeout".into(),
            ErrorKind::Unreadable(_) => "unreadable".into(),
            ErrorKind::Blocked(_) => BLOCKED.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::TcpListener, sync::Arc, thread};

    use rcgen::{CertificateParams, KeyPair};
    use rustls::{ServerConfig, ServerConnection, crypto::ring, pki_types::PrivatePkcs8KeyDer};
    use serde_json::Value;

    use super::*;
    use crate::{
        api::{ApiClient, Lane, MetadataClient, Proof},
        model::trace::{BlockedReason, Obstacle},
        node::effects::Effects,
    };

    #[test]
    fn blocked_request_is_shown_as_blocked_by_the_guard() {
        let error = ApiError::blocked("DELETE", "/api/v1/pods", "absence proves nothing".to_owned());
        let blocked = Obstacle::from(&error.failure(Step::Delete));
        assert_eq!(blocked.reason, BlockedReason::Guard);
    }

    #[test]
    fn server_cannot_create_a_label_for_each_answer() {
        let codes = (0..=2000).map(|code| ApiError::refused("GET", "/x", code, None, b"").reason());
        let codes: BTreeSet<_> = codes.collect();
        assert!(codes.len() < 80, "{codes:?}");
        assert!(codes.contains("409") && codes.contains("unknown_status"));
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
        let proof: Proof = Arc::new(|_| Box::pin(async { Ok(()) }));
        for (url, expected) in [(url.as_str(), true), ("https://127.0.0.1:1", false)] {
            let mut config = kube::Config::new(url.parse().unwrap());
            config.root_cert = Some(vec![other_authority.der().to_vec()]);
            let effects = Effects::none();
            let pods = ApiClient::new(
                &config,
                "none".into(),
                effects.clone(),
                ("n1", Arc::clone(&proof)),
                None,
            )
            .unwrap();
            let collector = MetadataClient::new(&config, "none".into(), effects, None).unwrap();
            let errors = [
                pods.version().await.unwrap_err(),
                collector
                    .json::<Value>(Lane::Get, "/version", "application/json")
                    .await
                    .unwrap_err(),
            ];
            for error in errors {
                assert!(
                    matches!(error.kind, ErrorKind::Unreachable { is_certificate_invalid, .. } if is_certificate_invalid == expected),
                    "{error:?}"
                );
            }
        }
    }
}
