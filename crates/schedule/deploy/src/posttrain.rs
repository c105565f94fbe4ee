//! posttrain
