//! Until when credentials are good, where they tell: a certificate does, and a token of a service account.

mod token;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use x509_parser::pem::Pem;

/// From here on their end is worth a warning.
pub const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The end of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// What they are.
    pub of: &'static str,
    /// When they end.
    pub end: Timestamp,
}

// === impl Expiry ===

impl Expiry {
    /// That of the credentials in `config`, whose files are read; nothing if they do not tell.
    ///
    /// # Errors
    /// A certificate that cannot be read.
    pub fn of(config: &kube::Config) -> Result<Option<Self>, String> {
        let auth = &config.auth_info;
        let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
            (Some(data), _) => STANDARD.decode(data).map_err(|error| error.to_string()),
            (None, Some(file)) => std::fs::read(file).map_err(|error| format!("{file}: {error}")),
            (None, None) => {
                let end = token::end(auth);
                return Ok(end.map(|end| Self { of: "a token", end }));
            }
        };
        let end = pem.and_then(|pem| certificate_end(&pem))?;
        Ok(Some(Self {
            of: "a certificate",
            end,
        }))
    }
}

/// Whether credentials that end then are to be renewed by now.
pub fn is_soon(end: Timestamp, now: Timestamp) -> bool {
    end.duration_since(now) < SOON
}

fn certificate_end(pem: &[u8]) -> Result<Timestamp, String> {
    // The first certificate is the client's own; a key may lie in the same file.
    for block in Pem::iter_from_buffer(pem) {
        let block = block.map_err(|error| error.to_string())?;
        if block.label == "CERTIFICATE" {
            let certificate = block.parse_x509().map_err(|error| error.to_string())?;
            let end = certificate.validity().not_after.timestamp();
            return Timestamp::from_second(end).map_err(|error| error.to_string());
        }
    }
    Err("no certificate in it".to_owned())
}
