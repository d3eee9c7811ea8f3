//! Tests of connections over software devices.

mod lanes;
mod redialing;
