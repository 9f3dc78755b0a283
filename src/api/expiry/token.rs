//! Expiry of a service account token. Other tokens do not show theirs.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use kube::config::AuthInfo;
use secrecy::ExposeSecret as _;
use serde::Deserialize;

/// The used claims of a JSON Web Token.
#[derive(Deserialize)]
struct Claims {
    exp: i64,
}

/// Expiry of the token of these credentials, if it shows it.
pub(super) fn expires_at(auth: &AuthInfo) -> Option<Timestamp> {
    match (&auth.token, &auth.token_file) {
        (_, Some(file)) => token_expiry(std::fs::read_to_string(file).ok()?.trim()),
        (Some(token), None) => token_expiry(token.expose_secret()),
        (None, None) => None,
    }
}

fn token_expiry(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims.exp).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_service_account_token_is_read() {
        let claims = URL_SAFE_NO_PAD.encode(r#"{"iss":"x","exp":1767225600}"#);
        let end = token_expiry(&format!("e30.{claims}.signature"));
        assert_eq!(end, "2026-01-01T00:00:00Z".parse().ok());
        let endless = URL_SAFE_NO_PAD.encode("{}");
        for other in ["collector", "", "a.b.c", &format!("e30.{endless}.x")] {
            assert_eq!(token_expiry(other), None, "{other}");
        }
    }
}
