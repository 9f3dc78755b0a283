//! Who asks, as headers say it. Making them goes through several layers, so they are kept for a while.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Empty;
use kube::client::ConfigExt as _;
use tokio::time::Instant;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn, util::BoxCloneSyncService};

/// They are kept for so long. Tokens are renewed ten seconds before they run out, or earlier.
const KEPT: Duration = Duration::from_secs(5);

/// See the module's documentation.
pub(super) struct Identity {
    layers: BoxCloneSyncService<Request<Empty<Bytes>>, Response<()>, BoxError>,
    kept: Mutex<Option<(Instant, HeaderMap)>>,
}

// === impl Identity ===

impl Identity {
    /// That of these credentials.
    pub fn new(config: &kube::Config) -> Result<Self, kube::Error> {
        let layers = ServiceBuilder::new()
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(service_fn(async |request: Request<Empty<Bytes>>| {
                let mut echo = Response::new(());
                *echo.headers_mut() = request.into_parts().0.headers;
                Ok::<_, BoxError>(echo)
            }));
        Ok(Self {
            layers: BoxCloneSyncService::new(layers),
            kept: Mutex::default(),
        })
    }

    /// The headers that say so, at the moment.
    pub async fn headers(&self) -> Result<HeaderMap, BoxError> {
        if let Some(headers) = self.kept() {
            return Ok(headers);
        }
        // Boxed, since it is rare, and every request would have to hold the place for it.
        let echo = Box::pin(self.layers.clone().oneshot(Request::default())).await?;
        let headers = echo.into_parts().0.headers;
        let kept = Some((Instant::now(), headers.clone()));
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        Ok(headers)
    }

    fn kept(&self) -> Option<HeaderMap> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, headers) = kept.as_ref()?;
        (since.elapsed() < KEPT).then(|| headers.clone())
    }
}
