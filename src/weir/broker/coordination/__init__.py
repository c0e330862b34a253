"""Operations of coordinators on partitions, local or remote, and the shards that store coordinator state."""
