//! Of a living owner nothing is deleted, whatever cannot be seen (`sight`), whatever a reference says (`coordinates`), and
//! whatever stands behind the server's address (`server`).

mod coordinates;
mod server;
mod sight;
