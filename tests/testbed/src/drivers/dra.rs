//! A plugin of a DRA driver.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tonic::service::{Routes, RoutesBuilder};
use tonic::{Request, Response, Status};

use super::behavior::{Behavior, Called, Play};
use super::home::Home;
use super::wire::k8s::io::kubelet::pkg::apis::dra::v1::{
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
    dra_plugin_server as v1,
};
use super::wire::k8s::io::kubelet::pkg::apis::dra::v1beta1::dra_plugin_server as v1beta1;

/// A gRPC service of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraService {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`.
    V1beta1,
}

/// A call to unprepare claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraCall {
    pub service: DraService,
    /// Namespace, name and UID of each claim.
    pub claims: Vec<(String, String, String)>,
}

/// A plugin on a node. Dropping it leaves its sockets, as a crash does.
#[derive(Debug)]
pub struct DraDriver {
    home: Home,
    plugin: Plugin,
}

#[derive(Debug, Clone)]
struct Plugin {
    play: Arc<Play<DraCall>>,
    words: Arc<Mutex<HashMap<String, Word>>>,
}

/// The answer for a claim instead of success.
#[derive(Debug, Clone)]
enum Word {
    Error(String),
    Nothing,
    Unasked,
}

impl DraDriver {
    /// Starts the only plugin of the driver with this name below a kubelet's root.
    pub fn start(root: &Path, name: &str, services: &[DraService]) -> Result<Self> {
        Self::listen(root, name, &format!("{name}-reg.sock"), "dra.sock", services)
    }

    /// Starts another plugin of that driver, as a pod of a rolling update does.
    pub fn start_beside(root: &Path, name: &str, pod_uid: &str, services: &[DraService]) -> Result<Self> {
        let registration = format!("{name}-{pod_uid}-reg.sock");
        Self::listen(root, name, &registration, &format!("dra-{pod_uid}.sock"), services)
    }

    fn listen(root: &Path, name: &str, registration: &str, endpoint: &str, services: &[DraService]) -> Result<Self> {
        let plugin = Plugin {
            play: Arc::new(Play::new()),
            words: Arc::default(),
        };
        let names: Vec<_> = services.iter().map(|service| service.name()).collect();
        let places = (registration, endpoint);
        Ok(Self {
            home: Home::open(root, "DRAPlugin", name, places, &names, plugin.routes(services))?,
            plugin,
        })
    }

    /// Sets its behavior. One that pretends leaves all claims out of its answer.
    pub fn behave(&self, behavior: Behavior) {
        self.plugin.play.behave(behavior);
    }

    /// Sets its behavior for the next `n` calls.
    pub fn behave_for(&self, n: usize, behavior: Behavior) {
        self.plugin.play.behave_for(n, behavior);
    }

    /// Answers with an error for the claim of this UID.
    pub fn fails_for(&self, uid: &str, error: &str) {
        self.plugin.say(uid, Word::Error(error.to_owned()));
    }

    /// Leaves the claim of this UID out of its answers.
    pub fn passes_over(&self, uid: &str) {
        self.plugin.say(uid, Word::Nothing);
    }

    /// Adds the claim with this UID to its answers, even if not requested.
    pub fn answers_also_for(&self, uid: &str) {
        self.plugin.say(uid, Word::Unasked);
    }

    /// Recorded calls with their times.
    pub fn called(&self) -> Vec<Called<DraCall>> {
        self.plugin.play.calls()
    }
}

/// Its sockets.
impl Deref for DraDriver {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl DraService {
    fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1.DRAPlugin",
            Self::V1beta1 => "v1beta1.DRAPlugin",
        }
    }
}

impl Plugin {
    fn routes(&self, services: &[DraService]) -> Routes {
        let mut routes = RoutesBuilder::default();
        for service in services {
            match service {
                DraService::V1 => routes.add_service(v1::DraPluginServer::new(self.clone())),
                DraService::V1beta1 => routes.add_service(v1beta1::DraPluginServer::new(self.clone())),
            };
        }
        routes.routes()
    }

    fn say(&self, uid: &str, word: Word) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.insert(uid.to_owned(), word);
    }

    async fn unprepare(
        &self,
        service: DraService,
        request: NodeUnprepareResourcesRequest,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.claims.into_iter().map(|it| (it.namespace, it.name, it.uid));
        let claims: Vec<_> = claims.collect();
        let uids: Vec<_> = claims.iter().map(|(_, _, uid)| uid.clone()).collect();
        let mut answer = NodeUnprepareResourcesResponse::default();
        if self.play.play(DraCall { service, claims }).await? {
            let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            let unasked = words.iter().filter(|(_, word)| matches!(word, Word::Unasked));
            for uid in uids.iter().chain(unasked.map(|(uid, _)| uid)) {
                let error = match words.get(uid) {
                    Some(Word::Nothing) => continue,
                    Some(Word::Error(error)) => error.clone(),
                    Some(Word::Unasked) | None => String::new(),
                };
                answer
                    .claims
                    .insert(uid.clone(), NodeUnprepareResourceResponse { error });
            }
        }
        Ok(Response::new(answer))
    }
}

#[tonic::async_trait]
impl v1::DraPlugin for Plugin {
    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        self.unprepare(DraService::V1, request.into_inner()).await
    }
}

#[tonic::async_trait]
impl v1beta1::DraPlugin for Plugin {
    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        self.unprepare(DraService::V1beta1, request.into_inner()).await
    }
}
