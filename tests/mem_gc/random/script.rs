//! Random steps.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::{
    apiserver::faults::{Action, Fault},
    dice::Dice,
    rest::Patch,
    things::DEFINITIONS,
};

use super::rules::KINDS;
use crate::world::{Cluster, TEST_FINALIZER, absent_owner, to};

/// Generates the steps from a seed.
pub struct Script {
    pub dice: Dice,
    uids: usize,
    /// UID of the object that it deleted last.
    pub deleted: Option<String>,
    is_beta_served: bool,
}

// === impl Script ===

impl Script {
    pub fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            uids: 0,
            deleted: None,
            is_beta_served: true,
        }
    }

    pub fn pause(&mut self) -> Duration {
        [0, 5, 50, 500, 5_000, 50_000].map(Duration::from_millis)[self.dice.up_to(6)]
    }

    /// Runs a random step; `true` if it restarted the collector.
    pub async fn step(&mut self, cluster: &mut Cluster) -> bool {
        match self.dice.up_to(20) {
            0..8 => self.create(cluster),
            8..12 => self.delete(cluster).await,
            12..15 => self.change_references(cluster),
            15 => self.remove_one_finalizer(cluster).await,
            16..19 => self.inject(cluster).await,
            _ => {
                if self.dice.one_in(3) {
                    cluster.stop();
                    cluster.start().await;
                    return true;
                }
                cluster.api.faults().clear();
            }
        }
        false
    }

    /// A random object with its path.
    fn random_object(&mut self, cluster: &Cluster) -> Option<(Value, String)> {
        let mut all_objects = all_objects(cluster);
        (!all_objects.is_empty()).then(|| {
            let place = self.dice.up_to(all_objects.len());
            all_objects.swap_remove(place)
        })
    }

    fn reference(&mut self, cluster: &Cluster) -> Value {
        let blocking = self.dice.one_in(2);
        let Some((owner, _)) = self.random_object(cluster) else {
            return absent_owner("v1", "Secret", 9_999_999);
        };
        let mut reference = to(&owner, blocking);
        if reference["apiVersion"] == "a.test/v1" && self.dice.one_in(2) {
            reference["apiVersion"] = "a.test/v1beta1".into();
        }
        match self.dice.up_to(20) {
            0 => {
                let (version, kind, _) = KINDS[self.dice.up_to(KINDS.len())];
                reference["apiVersion"] = version.into();
                reference["kind"] = kind.into();
            }
            1 => reference["name"] = format!("x{}", self.dice.up_to(6)).into(),
            2 if self.uids > 0 => reference["uid"] = uid(self.dice.up_to(self.uids)).into(),
            3 => reference["uid"] = uid(9_999_999).into(),
            4 => reference["kind"] = "Nothing".into(),
            _ => {}
        }
        reference
    }

    fn create(&mut self, cluster: &Cluster) {
        let (version, kind, namespaced) = KINDS[self.dice.up_to(KINDS.len())];
        let count = self.dice.up_to(4);
        let owners: Vec<Value> = (0..count).map(|_| self.reference(cluster)).collect();
        let mut finalizers = Vec::new();
        if self.dice.one_in(8) {
            finalizers.push(TEST_FINALIZER);
        }
        if self.dice.one_in(12) {
            finalizers.push(["orphan", "foregroundDeletion"][self.dice.up_to(2)]);
        }
        let mut object = json!({ "apiVersion": version, "kind": kind, "metadata": {
            "name": format!("x{}", self.dice.up_to(8)), "uid": uid(self.uids), "ownerReferences": owners,
            "finalizers": finalizers,
        } });
        if namespaced {
            object["metadata"]["namespace"] = ["default", "other"][self.dice.up_to(2)].into();
        }
        let is_there = |it: &Value| {
            let same = |field: &str| it["metadata"][field] == object["metadata"][field];
            same("name") && same("namespace")
        };
        if !cluster.api.objects(version, kind).iter().any(is_there) {
            self.uids += 1;
            cluster.api.insert_raw(object).unwrap();
        }
    }

    async fn delete(&mut self, cluster: &Cluster) {
        let policy = ["Background", "Foreground", "Orphan"][self.dice.up_to(3)];
        let Some((object, path)) = self.random_object(cluster) else {
            return;
        };
        let metadata = &object["metadata"];
        let finalizers = metadata["finalizers"].as_array();
        let has = |finalizer: &str| finalizers.is_some_and(|all| all.iter().any(|it| it == finalizer));
        let from_orphan = has("orphan");
        let from_foreground_to_orphan = has("foregroundDeletion") && policy == "Orphan";
        if metadata["deletionTimestamp"].is_string() && (from_orphan || from_foreground_to_orphan) {
            // Cannot be checked: the collector may already have sent the DELETE of a dependent.
            return;
        }
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy });
        self.deleted = metadata["uid"].as_str().map(str::to_owned);
        // It may be deleted by now.
        drop(cluster.admin.delete(&path, Some(&options)).await.unwrap());
    }

    /// Adds or removes a reference of a random object.
    fn change_references(&mut self, cluster: &Cluster) {
        let Some((mut object, _)) = self.random_object(cluster) else {
            return;
        };
        let mut owners = object["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if self.dice.one_in(2) && !owners.is_empty() {
            owners.remove(self.dice.up_to(owners.len()));
        } else {
            owners.push(self.reference(cluster));
        }
        object["metadata"]["ownerReferences"] = owners.into();
        cluster.api.insert_raw(object).unwrap();
    }

    async fn remove_one_finalizer(&mut self, cluster: &Cluster) {
        if let Some((object, path)) = self.random_object(cluster) {
            remove_test_finalizer(cluster, &object, &path).await;
        }
    }

    async fn inject(&mut self, cluster: &Cluster) {
        let resource = ["configmaps", "secrets", "things", "persistentvolumes"][self.dice.up_to(4)];
        let verb = ["get", "list", "watch", "patch", "delete"][self.dice.up_to(5)];
        let times = 1 + u32::try_from(self.dice.up_to(8)).unwrap();
        let fault = match self.dice.up_to(10) {
            0 => Fault::new(Action::CutWatch).resource(resource).times(times),
            1 => {
                cluster.api.compact();
                Fault::new(Action::CutWatch).times(4)
            }
            2 => Fault::new(Action::StallWatch).resource(resource).once(),
            3 => Fault::new(Action::LoseResponse).verb(verb).times(times),
            4 => Fault::new(Action::Refuse).verb(verb).resource(resource).times(times),
            5 => Fault::too_many(1).verb(verb).times(times),
            6 => Fault::status([403, 404, 409, 422, 500, 503][self.dice.up_to(6)])
                .verb(verb)
                .resource(resource)
                .times(times),
            7 | 8 => Fault::delay(self.dice.millis(4000))
                .verb(verb)
                .resource(resource)
                .times(times),
            _ => {
                self.is_beta_served = !self.is_beta_served;
                let patch =
                    json!([{ "op": "replace", "path": "/spec/versions/1/served", "value": self.is_beta_served }]);
                let definition = format!("{DEFINITIONS}/things.a.test");
                let patched = cluster.admin.patch(&definition, Patch::Json, &patch).await;
                patched.unwrap().ok().unwrap();
                return;
            }
        };
        cluster.inject(fault);
    }
}

fn uid(number: usize) -> String {
    format!("5eed0000-0000-4000-8000-{number:012}")
}

/// All objects with their paths.
fn all_objects(cluster: &Cluster) -> Vec<(Value, String)> {
    let mut all_objects = Vec::new();
    for (version, kind, _) in KINDS {
        for mut object in cluster.api.objects(version, kind) {
            object["apiVersion"] = version.into();
            object["kind"] = kind.into();
            let path = path(&object);
            all_objects.push((object, path));
        }
    }
    all_objects
}

/// Removes the test's finalizer from all objects.
pub async fn remove_test_finalizers(cluster: &Cluster) {
    for (object, path) in all_objects(cluster) {
        remove_test_finalizer(cluster, &object, &path).await;
    }
}

fn path(object: &Value) -> String {
    let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, metadata) = (field(&object["apiVersion"]), &object["metadata"]);
    let root = if version == "v1" { "/api" } else { "/apis" };
    let space = match metadata["namespace"].as_str() {
        Some(namespace) => format!("namespaces/{namespace}/"),
        None => String::new(),
    };
    let plural = format!("{}s", field(&object["kind"]).to_lowercase());
    format!("{root}/{version}/{space}{plural}/{}", field(&metadata["name"]))
}

/// Removes the test's finalizer from an object, as long as it has the same UID.
async fn remove_test_finalizer(cluster: &Cluster, object: &Value, path: &str) {
    for _ in 0..10 {
        let Some(now) = cluster.get(path).await else { return };
        if now["metadata"]["uid"] != object["metadata"]["uid"] {
            return;
        }
        let mut finalizers = now["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let before = finalizers.len();
        finalizers.retain(|it| it != TEST_FINALIZER);
        if finalizers.len() == before {
            return;
        }
        let metadata = json!({ "resourceVersion": now["metadata"]["resourceVersion"], "finalizers": finalizers });
        let answer = cluster
            .admin
            .patch(path, Patch::Merge, &json!({ "metadata": metadata }))
            .await;
        if answer.unwrap().code() == 200 {
            return;
        }
    }
}
