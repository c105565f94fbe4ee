# Gangs take a leaf each; a higher tier stops them and they go back to the queue.
cluster 8 nodes x 8 gpus, 4 per leaf
partition high tier=10
0m submit a nodes=4 limit=10m
1m submit b nodes=2 limit=10m
2m show
3m submit h nodes=8 limit=10m partition=high
4m show
